// Package modules holds tests of what kernel modules bring that only some suites need. The tests show that a module which a row
// in the table of suites (test/kernels) names is loaded before the suite, with everything the module itself needs.
package modules
