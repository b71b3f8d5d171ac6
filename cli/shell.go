package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/shellwire"
)

const prompt = "waggle> "

func (a *app) shellCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "shell [-- COMMAND [ARGUMENT...]]", Short: "Open the agent's shell, or run one of its commands",
		Args:    cobra.ArbitraryArgs,
		Example: "  waggle shell\n  waggle shell -- db/show endpoints\n  waggle shell -- help",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return a.shellRun(cmd, args...)
			}
			return a.interactive(cmd.Context())
		},
	}
	return a.withShellSocket(cmd)
}

// interactive reads and runs commands from the terminal, or from a pipe, until EOF.
func (a *app) interactive(ctx context.Context) error {
	conn, err := shellwire.Dial(ctx, a.shellSocket())
	if err != nil {
		return err
	}
	conn.Close() // each command uses its own connection, so that Ctrl-C can stop it
	file, ok := a.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return a.batch(ctx)
	}
	old, err := term.MakeRaw(int(file.Fd()))
	if err != nil {
		return fmt.Errorf("prepare the terminal: %w", err)
	}
	restore := func() { _ = term.Restore(int(file.Fd()), old) }
	defer restore()
	console := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{a.stdin, a.stdout}, prompt)
	console.AutoCompleteCallback = a.complete(ctx)
	fmt.Fprintln(console, `Only ct/flush and nat/flush change state. Try "help", "db" and "db/show endpoints"; exit with Ctrl-D.`)
	for {
		line, err := console.ReadLine()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case isExit(line):
			return nil
		}
		restore() // so that Ctrl-C is a signal while a command runs
		a.runLine(line)
		if old, err = term.MakeRaw(int(file.Fd())); err != nil {
			return fmt.Errorf("prepare the terminal: %w", err)
		}
	}
}

func isExit(line string) bool { return line == "exit" || line == "quit" || line == "stop" }

// runLine runs a command until it ends or Ctrl-C is pressed, and prints its error. The user decides how long to wait, so there is no other limit.
func (a *app) runLine(line string) {
	if line == "" {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := shellwire.Run(ctx, a.shellSocket(), line, 0, a.printLine); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(a.stdout, "error:", printable.Text(err.Error()))
	}
}

// batch runs the lines of a pipe or file and stops at the first failure.
func (a *app) batch(ctx context.Context) error {
	lines := bufio.NewScanner(a.stdin)
	for lines.Scan() {
		line := lines.Text()
		if isExit(line) {
			return nil
		}
		if err := a.runCommand(ctx, line, a.printLine); err != nil {
			return err
		}
	}
	return lines.Err()
}

// complete requests command names from the agent on Tab and returns their common prefix.
func (a *app) complete(ctx context.Context) func(line string, pos int, key rune) (string, int, bool) {
	return func(line string, pos int, key rune) (string, int, bool) {
		if key != '\t' || pos != len(line) || !isWord(line) {
			return "", 0, false
		}
		var found []string
		if err := a.runCommand(ctx, "help -a "+line, func(name string) { found = append(found, name) }); err != nil {
			return "", 0, false
		}
		longest := commonPrefix(found)
		return longest, len(longest), len(longest) > len(line)
	}
}

func isWord(line string) bool {
	for _, r := range line {
		if r <= ' ' || r == '\'' || r == '$' {
			return false
		}
	}
	return true
}

func commonPrefix(words []string) string {
	if len(words) == 0 {
		return ""
	}
	prefix := words[0]
	for _, word := range words[1:] {
		n := 0
		for n < len(prefix) && n < len(word) && prefix[n] == word[n] {
			n++
		}
		prefix = prefix[:n]
	}
	return prefix
}
