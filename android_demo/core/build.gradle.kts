// NEVER EXECUTED by this project; see settings.gradle.kts.
plugins {
    `java-library`
}
java {
    sourceCompatibility = JavaVersion.VERSION_17
    targetCompatibility = JavaVersion.VERSION_17
}
dependencies {
    api(libs.gson)
}
// The tests need fixtures that Python writes, so that make test-android runs them with Maven.
sourceSets.test { java.setSrcDirs(emptyList<String>()) }
