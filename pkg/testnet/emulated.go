package testnet

import "os"

// EmulatedEnv is set in the environment of tests on an emulated CPU (test/kernels).
const EmulatedEnv = "WAGGLE_TEST_EMULATED"

// Emulated reports whether the CPU is emulated, and so about thirty times slower. Tests whose property does not depend on a size may choose a smaller size
// then; they keep their assertions.
func Emulated() bool { return os.Getenv(EmulatedEnv) != "" }
