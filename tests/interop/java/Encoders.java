import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;

/**
 * An application that logs the same events through whatever encoder its loggers have. Reads one command a line and
 * answers each with a line of its own:
 *
 *   log4j2 LOGGER   a greeting, one whose thread context has the names of other fields, an error, an error without a
 *                   message, and a message with arguments, on a thread named "worker 1"; then the milliseconds before
 *                   the first and after the last
 *   logback LOGGER  the same through logback
 *   many API LOGGER COUNT, fail API LOGGER COUNT   as many events without and with an exception, then "logged"
 *   end             flushes what is logged, and ends
 */
public class Encoders {
  interface Log {
    void warn(String message);

    void error(String message, Throwable thrown);

    /** A message with arguments and, where the API has them, a key and value. */
    void arguments();

    void context(Map<String, String> context);
  }

  private static final Map<String, String> USER = Map.of("user", "jane");
  private static final Map<String, String> CLASHING = new TreeMap<>(Map.of(
      "level", "42", "thread", "pool-x", "logger", "mine", "timestamp", "never", "exception", "none",
      "message", "other", "user", "jane"));

  public static void main(String[] arguments) throws Exception {
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = commands.readLine(); line != null && !line.equals("end"); line = commands.readLine()) {
      String[] words = line.split(" ");
      if (words.length == 2) {
        Log log = log(words[0], words[1]);
        long before = System.currentTimeMillis();
        Thread worker = new Thread(() -> tell(log), "worker 1");
        worker.start();
        worker.join();
        System.out.println(before + " " + System.currentTimeMillis());
        continue;
      }
      Log log = log(words[1], words[2]);
      for (int number = 0; number < Integer.parseInt(words[3]); number++) {
        if (words[0].equals("many")) {
          log.warn(words[2] + "-" + number);
        } else {
          log.error(words[2] + "-" + number, failure());
        }
      }
      System.out.println("logged");
    }
    Thread flush = new Thread(org.apache.log4j.LogManager::shutdown);
    flush.setDaemon(true);
    flush.start();
    flush.join(60_000);  // log4j 1 has no limit of its own
    org.apache.logging.log4j.LogManager.shutdown();
    ((ch.qos.logback.classic.LoggerContext) org.slf4j.LoggerFactory.getILoggerFactory()).stop();
    System.out.println("ended");
  }

  private static void tell(Log log) {
    log.context(USER);
    log.warn("grüße\n\"世界\"");
    log.context(CLASHING);
    log.warn("clash");
    log.context(Map.of());
    log.error("failed", failure());
    log.error("", new Error());
    log.arguments();
  }

  /** With a cause, one that was suppressed, and frames in common. */
  static Exception failure() {
    try {
      outer();
      throw new AssertionError();
    } catch (IllegalStateException e) {
      return e;
    }
  }

  private static void outer() {
    try {
      inner();
    } catch (IllegalArgumentException e) {
      IllegalStateException failure = new IllegalStateException("no: really", e);
      failure.addSuppressed(new java.io.IOException("not closed", new RuntimeException("why not")));
      throw failure;
    }
  }

  private static void inner() {
    throw new IllegalArgumentException("two\nlines");
  }

  private static Log log(String api, String name) {
    return switch (api) {
      case "log4j1" -> new Log() {
        private final org.apache.log4j.Logger logger = org.apache.log4j.Logger.getLogger(name);

        public void warn(String message) {
          logger.warn(message);
        }

        public void error(String message, Throwable thrown) {
          logger.error(message, thrown);
        }

        public void arguments() {}

        public void context(Map<String, String> context) {}
      };
      case "log4j2" -> new Log() {
        private final org.apache.logging.log4j.Logger logger = org.apache.logging.log4j.LogManager.getLogger(name);

        public void warn(String message) {
          logger.warn(message);
        }

        public void error(String message, Throwable thrown) {
          logger.error(message, thrown);
        }

        public void arguments() {
          logger.warn("{} of {}", "two", 3);
        }

        public void context(Map<String, String> context) {
          org.apache.logging.log4j.ThreadContext.clearMap();
          org.apache.logging.log4j.ThreadContext.putAll(context);
        }
      };
      default -> new Log() {
        private final org.slf4j.Logger logger = org.slf4j.LoggerFactory.getLogger(name);

        public void warn(String message) {
          logger.warn(message);
        }

        public void error(String message, Throwable thrown) {
          logger.error(message, thrown);
        }

        public void arguments() {
          logger.atWarn().addKeyValue("order", "7").log("{} of {}", "two", 3);
        }

        public void context(Map<String, String> context) {
          org.slf4j.MDC.setContextMap(context);
        }
      };
    };
  }
}
