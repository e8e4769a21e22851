// NEVER EXECUTED by this project; see settings.gradle.kts.
plugins {
    alias(libs.plugins.android.library)
}
android {
    namespace = "org.pocketbert.engines.ort"
    compileSdk = 36
    defaultConfig { minSdk = 24 }
    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_17
        targetCompatibility = JavaVersion.VERSION_17
    }
    sourceSets["test"].java.setSrcDirs(emptyList<String>())
}
dependencies {
    api(project(":core"))
    implementation(libs.onnxruntime.android)
}
