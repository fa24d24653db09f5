import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.text.ParseException;
import java.text.SimpleDateFormat;
import java.util.Locale;
import java.util.TimeZone;

/** Reads a pattern and a text from each line, separated by a bar; prints the time in milliseconds, or "null". */
class SimpleDates {
  public static void main(String[] arguments) throws Exception {
    Locale.setDefault(Locale.US);
    TimeZone.setDefault(TimeZone.getTimeZone(arguments[0]));
    BufferedReader pairs = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
    for (String line = pairs.readLine(); line != null; line = pairs.readLine()) {
      int bar = line.indexOf('|');
      try {
        System.out.println(new SimpleDateFormat(line.substring(0, bar)).parse(line.substring(bar + 1)).getTime());
      } catch (ParseException e) {
        System.out.println("null");
      }
    }
  }
}
