// Package testseed provides random numbers to tests: the same seed for the same run, printed, so that a failure can be repeated.
package testseed

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Env names the environment variable that holds the seed of a run, a decimal number. The Makefile sets it to the hash of the
// committed tree where tests run on a real kernel, and `make soak` to a random number. Without it the seed is [Default].
const Env = "WAGGLE_SEED"

// Default is the seed of a run whose environment names none. It is constant, so that the test cache stays valid.
const Default = 1

// Seed returns the seed of the test: the seed of the run, mixed with the test's name, so that tests do not share a sequence. It logs the setting that repeats
// the run. It ends the test if the seed in the environment is not a number.
func Seed(t testing.TB) uint64 {
	t.Helper()
	run := uint64(Default)
	if text := os.Getenv(Env); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s=%q: want a decimal number of at most 64 bits", Env, text)
		}
		run = n
	}
	t.Logf("repeat with %s=%d", Env, run)
	h := fnv.New64a()
	_, _ = h.Write([]byte(t.Name()))
	return run ^ h.Sum64()
}

// New returns a source of random numbers with the test's [Seed].
func New(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Seed(t), 0))
}
