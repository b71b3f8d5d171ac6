package testnet

import "os"

// EmulatedEnv is set in the environment of tests whose CPU is emulated (test/kernels).
const EmulatedEnv = "WAGGLE_TEST_EMULATED"

// Emulated reports whether the CPU is emulated: about thirty times slower. Tests whose property does not depend on a size may
// choose a smaller one there; they keep their assertions.
func Emulated() bool { return os.Getenv(EmulatedEnv) != "" }
