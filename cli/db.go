package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/shellwire"
)

// dbCommand reads tables. Columns come from the agent's shell, which knows every table; JSON and YAML come from the API.
func (a *app) dbCommand() *cobra.Command {
	group := &cobra.Command{
		Use: "db", Short: "Show the agent's tables", Args: cobra.NoArgs,
		Long: "Show the agent's tables. Without a subcommand, show their names and sizes.",
		RunE: func(cmd *cobra.Command, _ []string) error { return a.shellRun(cmd, "db") },
	}
	var columns []string
	show := &cobra.Command{
		Use: "show TABLE", Short: "Show the rows of a table", Args: cobra.ExactArgs(1),
		Example: "  waggle db show endpoints\n  waggle db show attachments --columns=Device,Status\n  waggle db show health -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.output == "" {
				command := []string{"db/show", args[0]}
				if len(columns) > 0 {
					command = append(command, "--columns="+strings.Join(columns, ","))
				}
				return a.shellRun(cmd, command...)
			}
			return a.ask(cmd, func(ctx context.Context, c *agentclient.Client) error {
				rows, err := c.RawRows(ctx, args[0])
				if err != nil {
					return err
				}
				return a.show(rows, nil)
			})
		},
	}
	show.Flags().StringSliceVar(&columns, "columns", nil, "Show only these columns")
	list := &cobra.Command{
		Use: "list", Short: "List the tables", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.output == "" {
				return a.shellRun(cmd, "db")
			}
			text, err := a.shellText(cmd, "db")
			if err != nil {
				return err
			}
			return a.show(tableSizes(text), nil)
		},
	}
	get := &cobra.Command{
		Use: "get TABLE INDEX KEY", Short: "Show the rows with a key in an index", Args: cobra.ExactArgs(3),
		Example: "  waggle db get endpoints pod default/web",
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.output == "" {
				return a.shellRun(cmd, "db/list", "--index="+args[1], args[0], args[2])
			}
			text, err := a.shellText(cmd, "db/list", "--format=json", "--index="+args[1], args[0], args[2])
			if err != nil {
				return err
			}
			rows, err := objectsIn(text)
			if err != nil {
				return fmt.Errorf("read the rows of table %s: %w", args[0], err)
			}
			return a.show(rows, nil)
		},
	}
	group.AddCommand(a.withOutput(list), a.withOutput(show), a.withOutput(get))
	a.withShellSocket(group)
	return group
}

// withShellSocket adds the flag for the path of the shell's socket.
func (a *app) withShellSocket(cmd *cobra.Command) *cobra.Command {
	cmd.PersistentFlags().StringVar(&a.shellPath, "shell-socket", "", "Socket of the agent's shell (default: "+shellwire.SocketName+
		" beside the agent's socket)")
	return cmd
}

func (a *app) shellSocket() string {
	if a.shellPath != "" {
		return strings.TrimPrefix(a.shellPath, "unix://")
	}
	return a.beside(shellwire.SocketName)
}

// shellRun runs one command of the agent's shell and prints its output.
func (a *app) shellRun(cmd *cobra.Command, args ...string) error {
	err := a.runCommand(cmd.Context(), shellwire.Quote(args), a.printLine)
	if errors.Is(err, context.Canceled) { // Ctrl-C stops commands that run indefinitely
		return nil
	}
	return err
}

// shellText runs one command of the agent's shell and returns its output.
func (a *app) shellText(cmd *cobra.Command, args ...string) (string, error) {
	var out strings.Builder
	err := a.runCommand(cmd.Context(), shellwire.Quote(args), func(line string) { fmt.Fprintln(&out, line) })
	return out.String(), err
}

// runCommand runs one command of the agent's shell, with the timeout of an answer.
func (a *app) runCommand(ctx context.Context, command string, line func(string)) error {
	return shellwire.Run(ctx, a.shellSocket(), command, a.idleLimit(command), line)
}

// idleLimit returns the time in which the agent must continue the output of a command. db/watch prints changes when they happen, so it has no limit.
func (a *app) idleLimit(command string) time.Duration {
	if name, _, _ := strings.Cut(strings.TrimSpace(command), " "); name == "db/watch" {
		return 0
	}
	return a.timeout
}

// tableSize is a row of the shell's command db.
type tableSize struct {
	Name    string   `json:"name"`
	Objects int      `json:"objects"`
	Deleted int      `json:"deleted"` // deleted rows that a change iterator has not observed yet
	Indexes []string `json:"indexes"`
}

// tableSizes parses the columns of the shell's command db, which are separated by two or more spaces.
func tableSizes(text string) []tableSize {
	sizes := []tableSize{}
	for line := range strings.Lines(text) {
		columns := betweenColumns.Split(strings.TrimSpace(line), -1)
		if len(columns) < 4 || columns[0] == "Name" {
			continue
		}
		s := tableSize{Name: columns[0], Indexes: strings.Split(columns[3], ", ")}
		s.Objects, _ = strconv.Atoi(columns[1])
		s.Deleted, _ = strconv.Atoi(columns[2])
		sizes = append(sizes, s)
	}
	return sizes
}

var betweenColumns = regexp.MustCompile(`\s{2,}`)

// objectsIn parses a sequence of JSON values, or one list of them.
func objectsIn(text string) ([]json.RawMessage, error) {
	rows := []json.RawMessage{}
	for dec := json.NewDecoder(strings.NewReader(text)); ; {
		var row json.RawMessage
		if err := dec.Decode(&row); errors.Is(err, io.EOF) {
			return rows, nil
		} else if err != nil {
			return nil, err
		}
		var list []json.RawMessage
		if json.Unmarshal(row, &list) == nil {
			rows = append(rows, list...)
			continue
		}
		rows = append(rows, row)
	}
}

// printLine prints a line of the shell. It escapes the line, because tables contain names from other systems.
func (a *app) printLine(line string) { fmt.Fprintln(a.stdout, printableLine(line)) }
