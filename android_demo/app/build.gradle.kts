// NEVER EXECUTED by this project; see settings.gradle.kts.
plugins {
    alias(libs.plugins.android.application)
}
android {
    namespace = "org.pocketbert.demo"
    compileSdk = 36
    defaultConfig {
        applicationId = "org.pocketbert.demo"
        minSdk = 24
        targetSdk = 36
        versionCode = 1
        versionName = "0.1.0"
        ndk { abiFilters += listOf("arm64-v8a", "x86_64") }
    }
    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_17
        targetCompatibility = JavaVersion.VERSION_17
    }
    // Compressed model files cannot be mapped into memory.
    androidResources { noCompress += listOf("onnx", "tflite") }
    sourceSets["test"].java.setSrcDirs(emptyList<String>())
}
dependencies {
    implementation(project(":core"))
    implementation(project(":engine-ort"))
    implementation(project(":engine-tflite"))
}
