package org.pocketbert.statistics;

/**
 * Describes the phone that measured. What it did not tell is empty or 0; nothing here identifies its owner.
 *
 * @param maker manufacturer
 * @param model model
 * @param soc name of the chip
 * @param android version of Android, such as {@code 14}
 * @param api API level
 * @param abi processor interface, such as {@code arm64-v8a}
 * @param cores CPU cores
 * @param memoryBytes main memory
 * @param emulated whether it is an emulator, whose times are no latencies
 */
public record Phone(
        String maker,
        String model,
        String soc,
        String android,
        int api,
        String abi,
        int cores,
        long memoryBytes,
        boolean emulated) {}
