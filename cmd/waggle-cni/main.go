// Command waggle-cni is the CNI plugin. Container runtimes run it; users need not.
package main

import (
	"os"

	"github.com/waggle-net/waggle/cni"
)

func main() { os.Exit(cni.Main("CNI plugin waggle-cni")) }
