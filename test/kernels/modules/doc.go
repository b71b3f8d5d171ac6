// Package modules tests features of kernel modules that only some suites need. The tests check that a module in the table of suites (test/kernels) is loaded
// before the suite with all its dependencies.
package modules
