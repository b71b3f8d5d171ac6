// Command waggle shows operators the state of the agent on this node. See package cli.
package main

import (
	"os"

	"github.com/waggle-net/waggle/cli"
)

func main() { os.Exit(cli.Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
