// Command waggle shows operators what the agent on this node does. See package cli.
package main

import (
	"os"

	"github.com/waggle-net/waggle/cli"
)

func main() { os.Exit(cli.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
