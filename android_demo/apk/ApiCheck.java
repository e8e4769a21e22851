import java.io.File;
import java.io.FileInputStream;
import java.util.List;
import java.util.Set;
import org.codehaus.mojo.animal_sniffer.SignatureChecker;
import org.codehaus.mojo.animal_sniffer.logging.PrintWriterLogger;

/** Checks that classes use nothing that an Android API level lacks: java -cp TOOLS ApiCheck.java SIGNATURE ANNOTATION JAR... */
public final class ApiCheck {
    public static void main(String[] arguments) throws Exception {
        // What lies inside the app is no part of the system.
        Set<String> own = Set.of("org.pocketbert.*", "ai.onnxruntime.*", "org.tensorflow.lite.*", "com.google.gson.*", "com.android.tools.r8.*");
        SignatureChecker checker =
                new SignatureChecker(new FileInputStream(arguments[0]), own, new PrintWriterLogger(System.err));
        checker.setSourcePath(List.of());
        checker.setAnnotationTypes(List.of(arguments[1]));
        for (int i = 2; i < arguments.length; i++) {
            checker.process(new File(arguments[i]));
        }
        if (checker.isSignatureBroken()) {
            System.exit(1);
        }
        System.out.println("api check: nothing in " + (arguments.length - 2) + " jars is newer than the API level");
    }
}
