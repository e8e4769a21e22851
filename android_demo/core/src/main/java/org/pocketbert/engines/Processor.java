package org.pocketbert.engines;

/** Names the part of a phone that computes. */
public enum Processor {
    /** The general processor; every engine runs here. */
    CPU,
    /** The graphics processor. */
    GPU,
    /** An accelerator for neural networks, reached through the system's driver interface. */
    NPU
}
