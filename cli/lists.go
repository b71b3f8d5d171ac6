package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/column"
	"github.com/waggle-net/waggle/pkg/tables/drops"
	"github.com/waggle-net/waggle/pkg/tables/health"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
)

// simple returns a command without arguments that queries the agent and prints the result.
func (a *app) simple(use, short string, do func(context.Context, *agentclient.Client) error) *cobra.Command {
	return a.withOutput(&cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.ask(cmd, do) },
	})
}

// showRows returns a function that prints a table of the agent.
func showRows[T any](a *app, name string, header []string, columns func(T) []string) func(context.Context, *agentclient.Client) error {
	return func(ctx context.Context, c *agentclient.Client) error {
		if a.output != "" { // the agent's JSON can contain fields that this build does not know
			raw, err := c.RawRows(ctx, name)
			if err != nil {
				return err
			}
			return a.show(raw, nil)
		}
		rows, err := agentclient.Rows[T](ctx, c, name)
		if err != nil {
			return err
		}
		lines := make([][]string, 0, len(rows))
		for _, row := range rows {
			lines = append(lines, columns(row))
		}
		table(a.stdout, header, lines)
		return nil
	}
}

func (a *app) ipamCommand() *cobra.Command {
	group := &cobra.Command{Use: "ipam", Short: "Show addresses of pods"}
	group.AddCommand(a.simple("list", "List the addresses that are not free",
		showRows(a, "ipam-addresses", []string{"ADDRESS", "POOL", "STATE", "OWNER", "ATTACHMENT", "EXPIRES"},
			func(r ipamaddresses.Address) []string {
				return []string{r.Addr.String(), r.Pool, string(r.State), r.Owner, short(r.Attachment), column.Time(r.Expiry)}
			})))
	return group
}

func (a *app) dropsCommand() *cobra.Command {
	return a.simple("drops", "List the recently dropped packets, with the reason",
		showRows(a, "drops", []string{"TIME", "REASON", "DIRECTION", "ENDPOINT", "PROTO", "SOURCE", "DESTINATION", "LENGTH", "LOCATION", "POLICY"},
			func(d *drops.Drop) []string {
				row := d.TableRow()
				return []string{d.Time.Local().Format("15:04:05.000"), d.ReasonText, d.Direction, row[4], row[5], row[6], row[7],
					strconv.FormatUint(uint64(d.Length), 10), d.Location, d.Policy}
			}))
}

func (a *app) bootstrapCommand() *cobra.Command {
	return a.simple("bootstrap", "Show the duration of each start hook",
		showRows(a, "bootstrap", []string{"ORDER", "MODULE", "HOOK", "DETAIL", "DURATION"}, func(h health.Hook) []string {
			return []string{strconv.Itoa(h.Order), h.Module, function(h.Hook), function(h.Detail), h.Duration.Round(time.Microsecond).String()}
		}))
}

// function shortens hive's name of a hook, "path/package.function (place)", to "package.function". The agent's table contains the full name.
func function(name string) string {
	name, _, _ = strings.Cut(name, " (")
	return name[strings.LastIndex(name, "/")+1:]
}

func (a *app) mapCommand() *cobra.Command {
	group := &cobra.Command{Use: "map", Short: "Show maps of the datapath"}
	type row struct {
		Name, Type, Owner, Pin, Error  string
		KeySize, ValueSize, MaxEntries uint32
		Memory                         uint64
	}
	list := a.simple("list", "List all maps; sizes of keys and values, and memory, in bytes", showRows(a, "bpf-maps",
		[]string{"NAME", "TYPE", "KEY", "VALUE", "CAPACITY", "MEMORY", "OWNER", "PIN", "ERROR"}, func(r row) []string {
			return []string{r.Name, r.Type, fmt.Sprint(r.KeySize), fmt.Sprint(r.ValueSize), fmt.Sprint(r.MaxEntries),
				fmt.Sprint(r.Memory), r.Owner, r.Pin, r.Error}
		}))
	get := &cobra.Command{
		Use: "get NAME", Short: "Show the entries of a map", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd, func(ctx context.Context, c *agentclient.Client) error {
				return hinted(a.mapGet(ctx, c, args[0]), "map "+args[0], "waggle map list")
			})
		},
	}
	group.AddCommand(list, a.withOutput(get))
	return group
}

func (a *app) mapGet(ctx context.Context, c *agentclient.Client, name string) error {
	m, err := c.Map(ctx, name)
	if err != nil {
		return err
	}
	return a.show(m, func(w io.Writer) {
		var rows [][]string
		for _, e := range m.Cache {
			rows = append(rows, []string{e.Key, e.Value})
		}
		table(w, []string{"KEY", "VALUE"}, rows)
	})
}

func (a *app) configCommand() *cobra.Command {
	return a.simple("config", "Show the configuration of the running agent", func(ctx context.Context, c *agentclient.Client) error {
		config, err := c.Config(ctx)
		if err != nil {
			return err
		}
		return a.show(config, func(w io.Writer) { configText(w, config) })
	})
}

func configText(w io.Writer, config *models.DaemonConfiguration) {
	s := config.Status
	rows := [][]string{
		{"ipam-mode", s.IPAMMode}, {"datapath-mode", string(s.DatapathMode)},
		{"device-mtu", strconv.Itoa(s.DeviceMTU)}, {"route-mtu", strconv.Itoa(s.RouteMTU)},
	}
	for name, value := range s.Realized.Options {
		rows = append(rows, []string{name, value})
	}
	for name, value := range s.DaemonConfigurationMap {
		rows = append(rows, []string{"--" + name, fmt.Sprint(value)})
	}
	slices.SortFunc(rows, func(x, y []string) int { return cmp.Compare(x[0], y[0]) })
	table(w, []string{"NAME", "VALUE"}, rows)
}
