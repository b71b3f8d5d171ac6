// Package version identifies the build.
package version

import (
	"runtime"
	"runtime/debug"
)

// linked is set by the linker: -X github.com/waggle-net/waggle/pkg/version.linked=<git describe>.
var linked string

// String returns the version: the value set by the linker, else the value recorded by the Go tool, else "unknown".
func String() string {
	if linked != "" {
		return linked
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "unknown"
}

// Long returns the line that commands print.
func Long(program string) string {
	return program + " " + String() + " " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
}
