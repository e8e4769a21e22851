// For app developers. NEVER EXECUTED by this project: Google's Maven repository, which AGP comes from, was not reachable where the
// demo was written. The Maven build (pom.xml) compiles and tests the same sources.
pluginManagement {
    repositories {
        google()
        mavenCentral()
        gradlePluginPortal()
    }
}
dependencyResolutionManagement {
    repositoriesMode.set(RepositoriesMode.FAIL_ON_PROJECT_REPOS)
    repositories {
        google()
        mavenCentral()
    }
}
rootProject.name = "pocketbert-android-demo"
include(":core", ":engine-ort", ":engine-tflite", ":app")
