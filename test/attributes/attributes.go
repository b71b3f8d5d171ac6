// Package attributes names the attributes that tests set with [testing.TB.Attr] and that test/tiers reads.
package attributes

// WaitedForLoads is the time that a test has waited for the load generators of other tests, as [time.Duration.String] prints it. test/tiers subtracts it from
// the duration of the test. A test may set it several times.
const WaitedForLoads = "waited-for-loads"
