import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.StringReader;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.charset.Charset;
import java.nio.charset.CharsetDecoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.time.Clock;
import java.time.Instant;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.Calendar;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TimeZone;
import javax.servlet.http.HttpServletRequest;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import org.apache.avro.specific.SpecificDatumReader;
import org.apache.avro.specific.SpecificDatumWriter;
import org.apache.flume.Channel;
import org.apache.flume.ChannelSelector;
import org.apache.flume.Context;
import org.apache.flume.Event;
import org.apache.flume.channel.ChannelSelectorFactory;
import org.apache.flume.channel.MemoryChannel;
import org.apache.flume.client.avro.ReliableSpoolingFileEventReader;
import org.apache.flume.conf.FlumeConfiguration;
import org.apache.flume.conf.FlumeConfigurationError;
import org.apache.flume.event.EventBuilder;
import org.apache.flume.formatter.output.BucketPath;
import org.apache.flume.formatter.output.PathManager;
import org.apache.flume.formatter.output.PathManagerFactory;
import org.apache.flume.instrumentation.SourceCounter;
import org.apache.flume.interceptor.Interceptor;
import org.apache.flume.interceptor.InterceptorBuilderFactory;
import org.apache.flume.interceptor.RegexExtractorInterceptorMillisSerializer;
import org.apache.flume.serialization.DecodeErrorPolicy;
import org.apache.flume.serialization.EventDeserializer;
import org.apache.flume.serialization.EventDeserializerFactory;
import org.apache.flume.serialization.EventSerializer;
import org.apache.flume.serialization.EventSerializerFactory;
import org.apache.flume.serialization.PositionTracker;
import org.apache.flume.serialization.ResettableFileInputStream;
import org.apache.flume.source.SpoolDirectorySourceConfigurationConstants;
import org.apache.flume.source.SyslogUtils;
import org.apache.flume.source.avro.AvroFlumeEvent;
import org.apache.flume.source.http.JSONHandler;
import org.apache.mina.core.buffer.IoBuffer;
import org.joda.time.DateTimeUtils;
import org.joda.time.DateTimeZone;

/**
 * Asks Apache Flume's own classes: a line of JSON with an operation, its settings and items in, a line with an answer
 * for each item out. Bytes are written as the characters U+0000 to U+00FF. The property `scratch` names a file to write
 * into.
 */
public class Differences {
  private static final ObjectMapper JSON = new ObjectMapper();

  static {
    JSON.getFactory().configure(JsonGenerator.Feature.ESCAPE_NON_ASCII, true);
  }


  private static final Charset BYTES = StandardCharsets.ISO_8859_1;
  private static File scratch;

  private interface Answering {
    JsonNode of(JsonNode item) throws Throwable;
  }

  public static void main(String[] arguments) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, true, "UTF-8");
    System.setOut(System.err);
    scratch = new File(System.getProperty("scratch"));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      JsonNode question = JSON.readTree(line);
      TimeZone zone = TimeZone.getTimeZone(question.path("tz").asText("UTC"));
      TimeZone.setDefault(zone);
      DateTimeZone.setDefault(DateTimeZone.forTimeZone(zone));
      ObjectNode answer = JSON.createObjectNode();
      try {
        Answering answering = answering(question);
        ArrayNode results = answer.putArray("results");
        for (JsonNode item : question.get("items")) {
          try {
            results.add(answering.of(item));
          } catch (Throwable e) {
            results.add(error(e));
          }
        }
      } catch (Throwable e) {
        answer.removeAll();
        answer.setAll(error(e));
      }
      out.println(JSON.writeValueAsString(answer));
    }
  }

  private static ObjectNode error(Throwable e) {
    Throwable cause = e instanceof InvocationTargetException ? e.getCause() : e;
    return JSON.createObjectNode().put("error", cause.getClass().getSimpleName() + ": " + cause.getMessage());
  }

  private static Answering answering(JsonNode settings) throws Throwable {
    switch (settings.get("op").asText()) {
      case "config":
        return item -> configuration(item.asText(), false);
      case "resolve":
        return item -> configuration(settings.get("before").asText() + item.asText(), true);
      case "syslog":
        return item -> syslog(settings, bytes(item));
      case "multiport":
        return multiport(settings);
      case "time":
        return time(settings);
      case "path":
        return path(settings);
      case "names":
        return names(settings);
      case "intercept":
        return intercept(settings);
      case "select":
        return select(settings);
      case "serialize":
        return serialize(settings);
      case "deserialize":
      case "deserializeAvro":
        return item -> deserialize(settings, bytes(item));
      case "spool":
        return item -> spool(settings, item);
      case "json":
        return json(settings);
      case "wire":
        return Differences::wire;
      case "unwire":
        return Differences::unwire;
      case "context":
        return Differences::context;
      default:
        throw new IllegalArgumentException("no operation " + settings.get("op"));
    }
  }

  // --- values

  private static byte[] bytes(JsonNode text) {
    return text.asText().getBytes(BYTES);
  }

  private static Map<String, String> map(JsonNode object) {
    Map<String, String> map = new HashMap<>();
    for (Iterator<Map.Entry<String, JsonNode>> i = object.fields(); i.hasNext();) {
      Map.Entry<String, JsonNode> entry = i.next();
      map.put(entry.getKey(), entry.getValue().asText());
    }
    return map;
  }

  /** An event is a list of its headers and its body. */
  private static Event event(JsonNode event) {
    return EventBuilder.withBody(bytes(event.get(1)), map(event.get(0)));
  }

  private static JsonNode written(Event event) {
    if (event == null) {
      return JSON.nullNode();
    }
    ArrayNode pair = JSON.createArrayNode();
    pair.add(JSON.valueToTree(event.getHeaders()));
    return pair.add(new String(event.getBody(), BYTES));
  }

  private static ArrayNode written(Iterable<Event> events) {
    ArrayNode list = JSON.createArrayNode();
    for (Event event : events) {
      list.add(written(event));
    }
    return list;
  }

  // --- configurations

  private static JsonNode configuration(String text, boolean resolve) throws Throwable {
    Properties properties = new Properties();
    properties.load(new StringReader(text));
    FlumeConfiguration configuration;
    if (resolve) {
      Method method = Class.forName("org.apache.flume.node.MapResolver")
          .getDeclaredMethod("resolveProperties", Properties.class);
      method.setAccessible(true);
      @SuppressWarnings("unchecked")
      Map<String, String> resolved = (Map<String, String>) method.invoke(null, properties);
      configuration = new FlumeConfiguration(resolved);
    } else {
      configuration = new FlumeConfiguration(properties);
    }
    ObjectNode answer = JSON.createObjectNode();
    ObjectNode agents = answer.putObject("agents");
    for (String name : properties.stringPropertyNames()) {
      int dot = name.trim().indexOf('.');
      String agent = dot < 0 ? "" : name.trim().substring(0, dot);
      if (agent.isEmpty() || agents.has(agent)) {
        continue;
      }
      FlumeConfiguration.AgentConfiguration kept = configuration.getConfigurationFor(agent);
      if (kept == null) {
        agents.putNull(agent);
        continue;
      }
      ObjectNode parts = agents.putObject(agent);
      parts.set("sources", JSON.valueToTree(kept.getSourceSet()));
      parts.set("channels", JSON.valueToTree(kept.getChannelSet()));
      parts.set("sinks", JSON.valueToTree(kept.getSinkSet()));
      parts.set("sinkgroups", JSON.valueToTree(kept.getSinkgroupSet()));
      parts.set("configfilters", JSON.valueToTree(kept.getConfigFilterSet()));
      ObjectNode contexts = parts.putObject("contexts");
      contexts(contexts, "sources", kept.getSourceContext());
      contexts(contexts, "channels", kept.getChannelContext());
      contexts(contexts, "sinks", kept.getSinkContext());
    }
    ArrayNode errors = answer.putArray("errors");
    for (FlumeConfigurationError error : configuration.getConfigurationErrors()) {
      errors.add(error.getErrorOrWarning() + " " + error.getErrorType() + " component=" + error.getComponentName()
          + " key=" + error.getKey());
    }
    return answer;
  }

  private static void contexts(ObjectNode to, String kind, Map<String, Context> contexts) {
    contexts.forEach((name, context) -> to.set(kind + "." + name, JSON.valueToTree(context.getParameters())));
  }

  // --- syslog

  private static JsonNode syslog(JsonNode settings, byte[] data) {
    Clock clock = Clock.fixed(Instant.ofEpochMilli(settings.get("now").asLong()), ZoneId.systemDefault());
    Set<String> keep = SyslogUtils.chooseFieldsToKeep(settings.get("keepFields").asText());
    boolean datagram = settings.get("udp").asBoolean();
    SyslogUtils utils = new SyslogUtils(settings.get("eventSize").asInt(), keep, datagram, clock);
    utils.addFormats(map(settings.path("format")));
    ByteBuf in = Unpooled.wrappedBuffer(data);
    List<Event> events = new ArrayList<>();
    while (in.isReadable()) {
      Event event = utils.extractEvent(in);
      if (event != null) {
        events.add(event);
      }
      if (datagram) {
        break;
      }
    }
    return written(events);
  }

  private static Answering multiport(JsonNode settings) throws Throwable {
    String source = "org.apache.flume.source.MultiportSyslogTCPSource";
    int size = settings.get("eventSize").asInt();
    DateTimeUtils.setCurrentMillisFixed(settings.get("now").asLong());
    Object[] arguments = {size, 100, null, new SourceCounter("differences"), null, null, null, null, null,
        SyslogUtils.chooseFieldsToKeep(settings.get("keepFields").asText())};
    Object handler = made(source + "$MultiportSyslogHandler", arguments);
    Object splitter = made(source + "$LineSplitter", size);
    Object line = made(source + "$ParsedBuffer");
    Method next = named(splitter.getClass(), "parseLine");
    Method parse = named(handler.getClass(), "parseEvent");
    CharsetDecoder decoder = Charset.forName(settings.get("charset").asText()).newDecoder();
    return item -> {
      List<Event> events = new ArrayList<>();
      IoBuffer arrived = IoBuffer.wrap(bytes(item));
      IoBuffer saved = IoBuffer.allocate(size, false);
      while ((Boolean) next.invoke(splitter, arrived, saved, line)) {
        events.add((Event) parse.invoke(handler, line, decoder));
      }
      return written(events);
    };
  }

  private static Object made(String name, Object... arguments) throws Throwable {
    Constructor<?> constructor = Class.forName(name).getDeclaredConstructors()[0];
    constructor.setAccessible(true);
    return constructor.newInstance(arguments);
  }

  private static Method named(Class<?> type, String name) {
    for (Method method : type.getDeclaredMethods()) {
      if (method.getName().equals(name)) {
        method.setAccessible(true);
        return method;
      }
    }
    throw new IllegalArgumentException(name);
  }

  // --- dates and paths

  private static Answering time(JsonNode settings) {
    RegexExtractorInterceptorMillisSerializer serializer = new RegexExtractorInterceptorMillisSerializer();
    DateTimeUtils.setCurrentMillisFixed(settings.get("now").asLong());
    serializer.configure(new Context(Map.of("pattern", settings.get("pattern").asText())));
    return item -> JSON.getNodeFactory().textNode(serializer.serialize(item.asText()));
  }

  private static Answering path(JsonNode settings) {
    JsonNode named = settings.get("timeZone");
    TimeZone zone = named.isNull() ? null : TimeZone.getTimeZone(named.asText());
    boolean round = settings.get("round").asBoolean();
    boolean local = settings.get("useLocalTimeStamp").asBoolean();
    int value = settings.get("roundValue").asInt();
    int unit = settings.get("roundUnit").asText().equals("hour") ? Calendar.HOUR_OF_DAY
        : settings.get("roundUnit").asText().equals("minute") ? Calendar.MINUTE : Calendar.SECOND;
    long clock = settings.get("clock").asLong();
    String pattern = settings.get("pattern").asText();
    BucketPath.setClock(() -> clock);
    return item -> JSON.getNodeFactory().textNode(
        BucketPath.escapeString(pattern, map(item), zone, round, unit, value, local));
  }

  private static Answering names(JsonNode settings) {
    return item -> {
      PathManager paths = PathManagerFactory.getInstance(settings.get("type").asText(), new Context(map(item.get(0))));
      paths.setBaseDirectory(scratch.getParentFile());
      ArrayNode names = JSON.createArrayNode();
      for (int i = 0; i < item.get(1).asInt(); i++) {
        names.add(paths.nextFile().getName());
        paths.rotate();
      }
      return names;
    };
  }

  // --- events

  private static Answering intercept(JsonNode settings) throws Throwable {
    List<Interceptor> chain = new ArrayList<>();
    for (JsonNode link : settings.get("chain")) {
      Interceptor.Builder builder = InterceptorBuilderFactory.newInstance(link.get("type").asText());
      builder.configure(new Context(map(link.get("config"))));
      Interceptor interceptor = builder.build();
      interceptor.initialize();
      chain.add(interceptor);
    }
    return item -> {
      Event event = event(item);
      for (Interceptor interceptor : chain) {
        if (event != null) {
          event = interceptor.intercept(event);
        }
      }
      return written(event);
    };
  }

  private static Answering select(JsonNode settings) {
    List<Channel> channels = new ArrayList<>();
    for (JsonNode name : settings.get("channels")) {
      Channel channel = new MemoryChannel();
      channel.setName(name.asText());
      channels.add(channel);
    }
    ChannelSelector selector = ChannelSelectorFactory.create(channels, map(settings.get("config")));
    return item -> {
      Event event = EventBuilder.withBody(new byte[0], map(item));
      ObjectNode answer = JSON.createObjectNode();
      answer.set("required", names(selector.getRequiredChannels(event)));
      answer.set("optional", names(selector.getOptionalChannels(event)));
      return answer;
    };
  }

  private static ArrayNode names(List<Channel> channels) {
    ArrayNode names = JSON.createArrayNode();
    for (Channel channel : channels) {
      names.add(channel == null ? null : channel.getName());
    }
    return names;
  }

  private static Answering serialize(JsonNode settings) throws Throwable {
    Context context = new Context(map(settings.get("config")));
    return item -> {
      ByteArrayOutputStream out = new ByteArrayOutputStream();
      EventSerializer serializer = EventSerializerFactory.getInstance(settings.get("type").asText(), context, out);
      serializer.afterCreate();
      for (JsonNode event : item) {
        serializer.write(event(event));
      }
      serializer.flush();
      serializer.beforeClose();
      return JSON.getNodeFactory().textNode(out.toString(BYTES));
    };
  }

  private static JsonNode deserialize(JsonNode settings, byte[] data) throws Throwable {
    Files.write(scratch.toPath(), data);
    try (ResettableFileInputStream in = new ResettableFileInputStream(scratch, new Start(),
        settings.path("buffer").asInt(ResettableFileInputStream.DEFAULT_BUF_SIZE),
        Charset.forName(settings.get("charset").asText()), DecodeErrorPolicy.valueOf(settings.get("policy").asText()))) {
      EventDeserializer deserializer = EventDeserializerFactory.getInstance(settings.get("type").asText(),
          new Context(map(settings.get("config"))), in);
      List<Event> events = new ArrayList<>();
      for (Event event = deserializer.readEvent(); event != null; event = deserializer.readEvent()) {
        events.add(event);
      }
      return written(events);
    }
  }

  /** Which of these files are read, in which order, and what is there afterwards. */
  private static JsonNode spool(JsonNode settings, JsonNode files) throws Throwable {
    java.nio.file.Path directory = Files.createTempDirectory(scratch.getParentFile().toPath(), "spool");
    for (JsonNode file : files) {
      java.nio.file.Path path = directory.resolve(file.get(0).asText());
      Files.createDirectories(path.getParent());
      Files.write(path, "x\n".getBytes(BYTES));
      Files.setLastModifiedTime(path, java.nio.file.attribute.FileTime.fromMillis(file.get(1).asLong()));
    }
    Map<String, String> config = map(settings.get("config"));
    ReliableSpoolingFileEventReader reader = new ReliableSpoolingFileEventReader.Builder()
        .spoolDirectory(directory.toFile()).completedSuffix(config.getOrDefault("fileSuffix", ".COMPLETED"))
        .includePattern(config.getOrDefault("includePattern", "^.*$"))
        .ignorePattern(config.getOrDefault("ignorePattern", "^$")).trackerDirPath(".flumespool")
        .annotateFileName(true).fileNameHeader("file").annotateBaseName(true).baseNameHeader("basename")
        .deserializerType("LINE").deserializerContext(new Context())
        .deletePolicy(config.getOrDefault("deletePolicy", "never"))
        .trackingPolicy(config.getOrDefault("trackingPolicy", "rename")).inputCharset("UTF-8")
        .decodeErrorPolicy(DecodeErrorPolicy.FAIL).consumeOrder(SpoolDirectorySourceConfigurationConstants.ConsumeOrder
            .valueOf(config.getOrDefault("consumeOrder", "oldest").toUpperCase()))
        .recursiveDirectorySearch(Boolean.parseBoolean(config.getOrDefault("recursiveDirectorySearch", "false")))
        .sourceCounter(new SourceCounter("spool")).build();
    ArrayNode answer = JSON.createArrayNode();
    ArrayNode read = answer.addArray();
    for (List<Event> events = reader.readEvents(1); !events.isEmpty(); events = reader.readEvents(1)) {
      String file = events.get(0).getHeaders().get("file");
      read.add(directory.relativize(new File(file).toPath()).toString());
      reader.commit();
    }
    reader.close();
    ArrayNode left = answer.addArray();
    try (java.util.stream.Stream<java.nio.file.Path> paths = Files.walk(directory)) {
      paths.filter(Files::isRegularFile).map(path -> directory.relativize(path).toString()).sorted()
          .forEach(left::add);
    }
    org.apache.commons.io.FileUtils.deleteDirectory(directory.toFile());
    return answer;
  }

  /** The beginning of a file. */
  private static final class Start implements PositionTracker {
    @Override
    public void storePosition(long position) {
    }

    @Override
    public long getPosition() {
      return 0;
    }

    @Override
    public String getTarget() {
      return scratch.getPath();
    }

    @Override
    public void close() {
    }
  }

  private static Answering json(JsonNode settings) {
    JSONHandler handler = new JSONHandler();
    handler.configure(new Context());
    JsonNode named = settings.get("charset");
    String charset = named.isNull() ? null : named.asText();
    return item -> {
      Charset read = charset == null ? StandardCharsets.UTF_8 : Charset.forName(charset);
      BufferedReader reader = new BufferedReader(new InputStreamReader(new ByteArrayInputStream(bytes(item)), read));
      Object request = Proxy.newProxyInstance(Differences.class.getClassLoader(),
          new Class<?>[] {HttpServletRequest.class},
          (proxy, method, values) -> method.getName().equals("getReader") ? reader
              : method.getName().equals("getCharacterEncoding") ? charset : null);
      return written(handler.getEvents((HttpServletRequest) request));
    };
  }

  private static JsonNode wire(JsonNode item) throws Throwable {
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    BinaryEncoder encoder = EncoderFactory.get().directBinaryEncoder(out, null);
    Map<CharSequence, CharSequence> headers = new HashMap<>(map(item.get(0)));
    new SpecificDatumWriter<>(AvroFlumeEvent.class)
        .write(new AvroFlumeEvent(headers, ByteBuffer.wrap(bytes(item.get(1)))), encoder);
    encoder.flush();
    return JSON.getNodeFactory().textNode(out.toString(BYTES));
  }

  private static JsonNode unwire(JsonNode item) throws Throwable {
    AvroFlumeEvent event = new SpecificDatumReader<>(AvroFlumeEvent.class)
        .read(null, DecoderFactory.get().directBinaryDecoder(new ByteArrayInputStream(bytes(item)), null));
    Map<String, String> headers = new HashMap<>();
    event.getHeaders().forEach((name, value) -> headers.put(name.toString(), value.toString()));
    return written(EventBuilder.withBody(event.getBody().array(), headers));
  }

  private static JsonNode context(JsonNode item) {
    Context context = new Context(map(item.get("params")));
    String key = item.get("key").asText();
    switch (item.get("get").asText()) {
      case "string":
        return JSON.valueToTree(context.getString(key));
      case "boolean":
        return JSON.valueToTree(context.getBoolean(key));
      case "int":
        return JSON.valueToTree(context.getInteger(key));
      case "long":
        return JSON.valueToTree(context.getLong(key));
      case "float":
        return JSON.valueToTree(context.getFloat(key));
      case "double":
        return JSON.valueToTree(String.valueOf(context.getDouble(key)));
      default:
        return JSON.valueToTree(context.getSubProperties(key));
    }
  }
}
