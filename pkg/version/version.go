// Package version says which build this is.
package version

import (
	"runtime"
	"runtime/debug"
)

// linked is set by the linker: -X github.com/waggle-net/waggle/pkg/version.linked=<git describe>.
var linked string

// String is the version: what the linker was told, else what the Go tool recorded, else "unknown".
func String() string {
	if linked != "" {
		return linked
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "unknown"
}

// Long is the line that commands print.
func Long(program string) string {
	return program + " " + String() + " " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
}
