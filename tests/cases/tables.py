# ruff: noqa: E501  what stands in a case's SQL stays as it was reported
"""Tables that several cases begin with."""

BINS = """\
CREATE TABLE bins (site TEXT NOT NULL, bin TEXT NOT NULL, qty INTEGER, created_at TEXT NOT NULL, updated_at TEXT NOT NULL, PRIMARY KEY (site, bin));
INSERT INTO bins VALUES ('A|B','C',1,'2024-05-01 10:00:00','2024-05-01 10:00:00'),('A','B|C',2,'2024-05-01 10:00:00','2024-05-01 10:00:00'),
 ('1','23',3,'2024-05-01 10:00:00','2024-05-01 10:00:00'),('12','3',4,'2024-05-01 10:00:00','2024-05-01 10:00:00'),
 ('x','',5,'2024-05-01 10:00:00','2024-05-01 10:00:00'),('','x',6,'2024-05-01 10:00:00','2024-05-01 10:00:00'),
 ('A:B','C',7,'2024-05-01 10:00:00','2024-05-01 10:00:00'),('A','B:C',8,'2024-05-01 10:00:00','2024-05-01 10:00:00'),
 ('d','v',9,'2024-05-01 10:00:00','2024-05-01 10:00:00'),('e','a',10,'2024-05-01 10:00:00','2024-05-01 10:00:00');
"""

TAGS = """\
CREATE TABLE tags (slug text COLLATE "en-x-icu" PRIMARY KEY, n int NOT NULL, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
INSERT INTO tags SELECT s, i, '2024-05-01 10:00+00', '2024-05-01 10:00+00'
FROM unnest(ARRAY['a','B','c','D','_x','ab','a_z','Zeta','élan']) WITH ORDINALITY AS t(s, i);
"""

SNOWFLAKES = """\
CREATE TABLE snowflakes (id bigint PRIMARY KEY, v text, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
INSERT INTO snowflakes SELECT i, 'v' || i, '2024-05-01 10:00+00', '2024-05-01 10:00+00'
FROM unnest(ARRAY[-9223372036854775808, -5, 0, 9007199254740991, 9007199254740992, 9007199254740993, 9007199254740994, 9223372036854775807]::bigint[]) i;
"""
