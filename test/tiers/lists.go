package main

import (
	"os"
	"strings"
)

// permittedSkips names the tests that may be skipped where everything is installed, each with the reason. Any other skip is a
// failure when CI=true: a property that is not tested is not proved.
var permittedSkips = map[string]string{
	"test/kernels/modules TestPrivilegedModules_WireGuardLink": "this machine's kernel need not have the module: test/kernels loads it",
	"test/kernels/modules TestPrivilegedModules_FairQueue":     "this machine's kernel need not have the module: test/kernels loads it",
	"test/kernels/modules TestPrivilegedModules_ESPState":      "this machine's kernel need not have the module: test/kernels loads it",
	"test/node TestPrivilegedWedge_AStoppedProcessIsNone":      "waits out the limits of the release: only the soak does",
	"test/node TestPrivilegedWedge_LittleCPUIsNone":            "takes every CPU for a minute: only the soak does",
}

// expensive names the tests that use more than 10 s of CPU time or more than 15 s of waiting, each with the reason.
var expensive = map[string]string{}

// kernelsFlags are flags for test/kernels, from the Makefile's KERNELS_FLAGS.
func kernelsFlags() []string { return strings.Fields(os.Getenv("KERNELS_FLAGS")) }
