import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.kitesdk.morphline.api.Command;
import org.kitesdk.morphline.api.MorphlineContext;
import org.kitesdk.morphline.api.Record;
import org.kitesdk.morphline.base.Compiler;
import org.kitesdk.morphline.base.Notifications;

/** Runs morphlines: a line of JSON with a file and records in, a line with what comes out of each record out. */
public class Morphlines {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final Map<String, Command> MORPHLINES = new HashMap<>();
  private static final Map<String, Collector> COLLECTORS = new HashMap<>();

  public static void main(String[] arguments) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, true, "UTF-8");
    System.setOut(System.err);
    Thread.currentThread().setContextClassLoader(searchable());
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
    }
  }

  /** The class path as Kite can look through it: its library knows the class loaders of Java 8. */
  private static ClassLoader searchable() throws Exception {
    List<URL> urls = new ArrayList<>();
    for (String path : System.getProperty("java.class.path").split(File.pathSeparator)) {
      urls.add(new File(path).toURI().toURL());
    }
    return new URLClassLoader(urls.toArray(new URL[0]), Morphlines.class.getClassLoader());
  }

  private static ObjectNode answer(JsonNode question) throws Exception {
    ObjectNode answer = JSON.createObjectNode();
    String file = question.get("file").asText();
    Collector collector = COLLECTORS.computeIfAbsent(file, name -> new Collector());
    Command morphline = MORPHLINES.get(file);
    try {
      if (morphline == null) {
        MorphlineContext context = new MorphlineContext.Builder().build();
        morphline = new Compiler().compile(new File(file), null, context, collector);
        MORPHLINES.put(file, morphline);
      }
    } catch (RuntimeException e) {
      return answer.put("error", e.toString());
    }
    ArrayNode results = answer.putArray("results");
    for (JsonNode fields : question.get("records")) {
      Record record = new Record();
      for (java.util.Iterator<Map.Entry<String, JsonNode>> i = fields.fields(); i.hasNext();) {
        Map.Entry<String, JsonNode> field = i.next();
        for (JsonNode value : field.getValue()) {
          record.put(field.getKey(), value.isObject() ? value.get("bytes").binaryValue() : value.asText());
        }
      }
      collector.records.clear();
      ObjectNode result = results.addObject();
      try {
        Notifications.notifyStartSession(morphline);
        result.put("success", morphline.process(record));
      } catch (RuntimeException e) {
        result.put("success", "failed");
      }
      ArrayNode records = result.putArray("records");
      for (Record one : collector.records) {
        ObjectNode written = records.addObject();
        for (Map.Entry<String, Collection<Object>> field : one.getFields().asMap().entrySet()) {
          ArrayNode values = written.putArray(field.getKey());
          for (Object value : field.getValue()) {
            values.add(written(value));
          }
        }
      }
    }
    return answer;
  }

  /** The value's type, and its text. */
  private static ArrayNode written(Object value) {
    ArrayNode pair = JSON.createArrayNode();
    if (value instanceof byte[]) {
      return pair.add("bytes").add((byte[]) value);
    }
    if (value instanceof JsonNode) {
      return pair.add("json").add(value.toString());
    }
    String type = value instanceof String ? "text" : value instanceof Boolean ? "truth"
        : value instanceof Double || value instanceof Float ? "fraction" : "whole";
    return pair.add(type).add(value.toString());
  }

  /** The end of a morphline: keeps what arrives. */
  private static final class Collector implements Command {
    final List<Record> records = new ArrayList<>();

    @Override
    public void notify(Record notification) {
    }

    @Override
    public boolean process(Record record) {
      return records.add(record);
    }

    @Override
    public Command getParent() {
      return null;
    }
  }
}
