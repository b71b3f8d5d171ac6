package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestReference checks that Documentation/cmdref.md is up to date.
func TestReference(t *testing.T) {
	t.Parallel()
	const file = "../Documentation/cmdref.md"
	var want bytes.Buffer
	writeReference(&want)
	if *update {
		if err := os.WriteFile(file, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s is not what the command says: run go generate ./cli", file)
	}
}

// writeReference writes the description of all commands as Markdown. Documentation/cmdref.md is its output.
func writeReference(w io.Writer) {
	fmt.Fprint(w, "# Command reference\n\nGenerated from the command itself: `go generate ./cli`.\n\n"+
		"Exit codes: 0 success, 1 the agent rejected the request or pods cannot be attached, 2 wrong arguments, 3 the agent does not answer.\n")
	root := (&app{}).root()
	root.InitDefaultCompletionCmd()
	writeCommand(w, root)
}

// writeCommand writes the description of a command and its subcommands.
func writeCommand(w io.Writer, cmd *cobra.Command) {
	cmd.InitDefaultHelpFlag()
	fmt.Fprintf(w, "\n## %s\n\n%s\n", cmd.CommandPath(), description(cmd))
	fmt.Fprintf(w, "\n```\n%s\n```\n", cmd.UseLine())
	if cmd.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n\n```\n%s\n```\n", cmd.Example)
	}
	if flags := cmd.LocalFlags().FlagUsages(); flags != "" {
		fmt.Fprintf(w, "\n```\n%s```\n", flags)
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() && cmd.Name() != "completion" {
			writeCommand(w, sub)
		}
	}
}

// description returns the long help text, without the shell-specific parts of the completion commands.
func description(cmd *cobra.Command) string {
	if cmd.Long == "" || cmd.Name() == "completion" {
		return strings.TrimSuffix(cmd.Short, ".") + "."
	}
	return cmd.Long
}
