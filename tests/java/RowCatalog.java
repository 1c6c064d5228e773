import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A catalog of tables in memory that can MERGE, by writing the whole table anew as one commit (copy on write). Options:
 * `merges` (false: its tables are only appended to), `widens` (false: no column's type can be changed).
 *
 * Of a Java that Spark's own Janino compiles, too: no lambdas, no inferred types.
 */
public class RowCatalog implements TableCatalog {
  private static final Map<String, Rows> TABLES = new ConcurrentHashMap<String, Rows>();
  private String name;
  private boolean merges;
  private boolean widens;

  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    this.merges = options.getBoolean("merges", true);
    this.widens = options.getBoolean("widens", true);
  }

  public String name() {
    return name;
  }

  public Identifier[] listTables(String[] namespace) {
    List<Identifier> found = new ArrayList<Identifier>();
    String prefix = name + "." + String.join(".", namespace) + ".";
    for (Iterator<String> all = TABLES.keySet().iterator(); all.hasNext(); ) {
      String key = (String) all.next();
      if (key.startsWith(prefix)) {
        found.add(Identifier.of(namespace, key.substring(prefix.length())));
      }
    }
    return (Identifier[]) found.toArray(new Identifier[found.size()]);
  }

  public Table loadTable(Identifier at) throws NoSuchTableException {
    Rows found = (Rows) TABLES.get(key(at));
    if (found == null) {
      throw new NoSuchTableException(at);
    }
    return found;
  }

  public Table createTable(Identifier at, TableInfo info) {
    return create(at, info.schema(), info.properties());
  }

  public Table createTable(Identifier at, Column[] columns, Transform[] parts, Map<String, String> properties) {
    StructType schema = new StructType();
    for (int i = 0; i < columns.length; i++) {
      schema = schema.add(columns[i].name(), columns[i].dataType(), true);
    }
    return create(at, schema, properties);
  }

  private Table create(Identifier at, StructType schema, Map<String, String> properties) {
    Rows made = merges ? new MergeableRows() : new Rows();
    made.name = key(at);
    made.schema = schema;
    made.properties = new HashMap<String, String>(properties);
    TABLES.put(key(at), made);
    return made;
  }

  public Table alterTable(Identifier at, TableChange[] changes) throws NoSuchTableException {
    Rows table = (Rows) loadTable(at);
    for (int i = 0; i < changes.length; i++) {
      if (changes[i] instanceof TableChange.AddColumn) {
        TableChange.AddColumn added = (TableChange.AddColumn) changes[i];
        table.schema = table.schema.add(added.fieldNames()[0], added.dataType(), true);
      } else if (changes[i] instanceof TableChange.UpdateColumnType && widens) {
        TableChange.UpdateColumnType wider = (TableChange.UpdateColumnType) changes[i];
        table.widen(wider.fieldNames()[0], wider.newDataType());
      } else if (changes[i] instanceof TableChange.SetProperty) {
        TableChange.SetProperty said = (TableChange.SetProperty) changes[i];
        table.properties.put(said.property(), said.value());
      } else {
        throw new UnsupportedOperationException("this catalog cannot do " + changes[i].getClass().getSimpleName());
      }
    }
    return table;
  }

  public boolean dropTable(Identifier at) {
    return TABLES.remove(key(at)) != null;
  }

  public void renameTable(Identifier from, Identifier to) {
    throw new UnsupportedOperationException("this catalog renames no tables");
  }

  private String key(Identifier at) {
    return name + "." + String.join(".", at.namespace()) + "." + at.name();
  }

  /** Rows in memory, each an array of Spark's internal values; a commit puts another list in place of the last. */
  public static class Rows implements SupportsRead, SupportsWrite {
    String name;
    StructType schema;
    Map<String, String> properties;
    volatile List<Object[]> rows = new ArrayList<Object[]>();

    public String name() {
      return name;
    }

    public StructType schema() {
      return schema;
    }

    public Map<String, String> properties() {
      return properties;
    }

    public Set<TableCapability> capabilities() {
      Set<TableCapability> found = new HashSet<TableCapability>();
      found.add(TableCapability.BATCH_READ);
      found.add(TableCapability.BATCH_WRITE);
      return found;
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return new Reading(this);
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return new Writing(this, info.schema(), false);
    }

    void widen(String column, DataType to) {
      int place = schema.fieldIndex(column);
      StructType wider = new StructType();
      for (int i = 0; i < schema.length(); i++) {
        StructField field = schema.fields()[i];
        wider = wider.add(field.name(), i == place ? to : field.dataType(), true);
      }
      List<Object[]> after = new ArrayList<Object[]>();
      for (int r = 0; r < rows.size(); r++) {
        Object[] row = (Object[]) ((Object[]) rows.get(r)).clone();
        if (place < row.length && row[place] instanceof Number) {
          Number value = (Number) row[place];
          if (to instanceof LongType) {
            row[place] = Long.valueOf(value.longValue());
          } else if (to instanceof DoubleType) {
            row[place] = Double.valueOf(value.doubleValue());
          } else {
            throw new UnsupportedOperationException("this catalog knows no way to " + to);
          }
        }
        after.add(row);
      }
      schema = wider;
      rows = after;
    }
  }

  /** Such a table that Spark's MERGE takes. */
  public static class MergeableRows extends Rows implements SupportsRowLevelOperations {
    public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
      return new Replacing(this, info.command());
    }
  }

  static class Replacing implements RowLevelOperationBuilder, RowLevelOperation {
    private final Rows table;
    private final RowLevelOperation.Command command;

    Replacing(Rows table, RowLevelOperation.Command command) {
      this.table = table;
      this.command = command;
    }

    public RowLevelOperation build() {
      return this;
    }

    public RowLevelOperation.Command command() {
      return command;
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      return new Reading(table);
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return new Writing(table, info.schema(), true);
    }

    public NamedReference[] requiredMetadataAttributes() {
      return new NamedReference[0];
    }
  }

  static class Reading implements ScanBuilder, Scan, Batch {
    private final Rows table;

    Reading(Rows table) {
      this.table = table;
    }

    public Scan build() {
      return this;
    }

    public StructType readSchema() {
      return table.schema;
    }

    public Batch toBatch() {
      return this;
    }

    public InputPartition[] planInputPartitions() {
      List<Object[]> rows = table.rows;
      return new InputPartition[] {new Part((Object[][]) rows.toArray(new Object[rows.size()][]), table.schema.length())};
    }

    public PartitionReaderFactory createReaderFactory() {
      return new ReaderFactory();
    }
  }

  static class Part implements InputPartition {
    final Object[][] rows;
    final int width;

    Part(Object[][] rows, int width) {
      this.rows = rows;
      this.width = width;
    }
  }

  static class ReaderFactory implements PartitionReaderFactory {
    public PartitionReader createReader(InputPartition part) {
      return new Reader((Part) part);
    }
  }

  static class Reader implements PartitionReader {
    private final Part part;
    private int place = -1;

    Reader(Part part) {
      this.part = part;
    }

    public boolean next() {
      place++;
      return place < part.rows.length;
    }

    public Object get() {
      // A row from before a column came has no value for it.
      Object[] row = new Object[part.width];
      System.arraycopy(part.rows[place], 0, row, 0, part.rows[place].length);
      return new GenericInternalRow(row);
    }

    public void close() {}
  }

  static class Writing implements WriteBuilder, Write, BatchWrite {
    private final Rows table;
    private final StructType schema;
    private final boolean replaces;

    Writing(Rows table, StructType schema, boolean replaces) {
      this.table = table;
      this.schema = schema;
      this.replaces = replaces;
    }

    public Write build() {
      return this;
    }

    public BatchWrite toBatch() {
      return this;
    }

    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
      return new WriterFactory(schema);
    }

    public void commit(WriterCommitMessage[] messages) {
      List<Object[]> after = new ArrayList<Object[]>(replaces ? Collections.<Object[]>emptyList() : table.rows);
      for (int i = 0; i < messages.length; i++) {
        after.addAll(((Written) messages[i]).rows);
      }
      table.rows = after;
    }

    public void abort(WriterCommitMessage[] messages) {}
  }

  static class WriterFactory implements DataWriterFactory {
    private final StructType schema;

    WriterFactory(StructType schema) {
      this.schema = schema;
    }

    public DataWriter createWriter(int partition, long task) {
      return new Writer(schema);
    }
  }

  static class Writer implements DataWriter {
    private final StructType schema;
    private final ArrayList<Object[]> rows = new ArrayList<Object[]>();

    Writer(StructType schema) {
      this.schema = schema;
    }

    public void write(Object given) {
      InternalRow row = ((InternalRow) given).copy();
      Object[] values = new Object[schema.length()];
      for (int i = 0; i < values.length; i++) {
        values[i] = row.isNullAt(i) ? null : row.get(i, schema.fields()[i].dataType());
      }
      rows.add(values);
    }

    public WriterCommitMessage commit() {
      return new Written(rows);
    }

    public void abort() {}

    public void close() {}
  }

  static class Written implements WriterCommitMessage {
    final ArrayList<Object[]> rows;

    Written(ArrayList<Object[]> rows) {
      this.rows = rows;
    }
  }
}
