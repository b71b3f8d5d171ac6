package ctgc

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"text/tabwriter"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/script"
	"github.com/spf13/pflag"
)

func newCommands(a *access) upstream.ScriptCmdsOut {
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"ct/list": command("List the tracked flows", false, func(f filter, how flags) (string, error) {
			rows, err := a.flows(f)
			if err != nil || how.json {
				return asJSON(rows, err)
			}
			return columns(flowHeader, rows, flow.columns), nil
		}),
		"ct/top": command("List the endpoints with the most flows", false, func(f filter, how flags) (string, error) {
			rows, err := a.talkers(f)
			if err != nil || how.json {
				return asJSON(rows, err)
			}
			return columns(talkerHeader, rows, talker.columns), nil
		}),
		"ct/flush": command("Delete flows: the next packet of each is evaluated as the first packet of a new flow", true,
			func(f filter, how flags) (string, error) {
				if f.empty() != how.all {
					return "", errors.New("select flows with --endpoint, --pod or --address, or all flows with --all alone")
				}
				n, err := a.flush(f)
				if err != nil || how.json {
					return asJSON(map[string]int{"deleted": n}, err)
				}
				return fmt.Sprintf("%d flows were deleted\n", n), nil
			}),
	})
}

// flags are the flags of all commands.
type flags struct {
	endpoint  uint16
	pod, addr string
	json, all bool
}

func (f flags) filter() (out filter, err error) {
	out = filter{endpoint: f.endpoint, pod: f.pod}
	if f.addr == "" {
		return out, nil
	}
	if out.addr, err = netip.ParseAddr(f.addr); err != nil {
		return out, fmt.Errorf("--address: %w", err)
	}
	return out, nil
}

func command(summary string, deletes bool, run func(filter, flags) (string, error)) script.Cmd {
	return filtered(summary, deletes, func(*pflag.FlagSet) {}, func(_ *pflag.FlagSet, f filter, how flags) (string, error) { return run(f, how) })
}

// filtered returns a command with the common flags and additional ones.
func filtered(summary string, deletes bool, more func(*pflag.FlagSet), run func(*pflag.FlagSet, filter, flags) (string, error)) script.Cmd {
	return script.Command(script.CmdUsage{
		Summary: summary,
		Flags: func(fs *pflag.FlagSet) {
			fs.Uint16("endpoint", 0, "Only flows of the endpoint with this id")
			fs.String("pod", "", "Only flows of this pod, as NAMESPACE/NAME")
			fs.String("address", "", "Only flows from or to this address")
			fs.Bool("json", false, "Print JSON")
			if deletes {
				fs.Bool("all", false, "All flows")
			}
			more(fs)
		},
	}, func(s *script.State, args ...string) (script.WaitFunc, error) {
		if len(args) > 0 {
			return nil, fmt.Errorf("want no arguments, got %q: %w", args, script.ErrUsage)
		}
		how, err := readFlags(s.Flags, deletes)
		if err != nil {
			return nil, err
		}
		f, err := how.filter()
		if err != nil {
			return nil, err
		}
		out, err := run(s.Flags, f, how)
		if err != nil {
			return nil, err
		}
		return func(*script.State) (string, string, error) { return out, "", nil }, nil
	})
}

func readFlags(fs *pflag.FlagSet, deletes bool) (f flags, err error) {
	var err1, err2, err3, err4, err5 error
	f.endpoint, err1 = fs.GetUint16("endpoint")
	f.pod, err2 = fs.GetString("pod")
	f.addr, err3 = fs.GetString("address")
	f.json, err4 = fs.GetBool("json")
	if deletes {
		f.all, err5 = fs.GetBool("all")
	}
	return f, errors.Join(err1, err2, err3, err4, err5)
}

func asJSON(value any, err error) (string, error) {
	if err != nil {
		return "", err
	}
	out, err := json.MarshalIndent(value, "", "  ")
	return string(out) + "\n", err
}

func columns[T any](header string, rows []T, of func(T) []string) string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, header)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(of(row), "\t"))
	}
	_ = w.Flush() // a Builder returns no error
	return out.String()
}

const (
	flowHeader   = "PROTOCOL\tSOURCE\tDESTINATION\tSTATE\tFROM\tTO\tIDENTITIES\tPACKETS\tBYTES\tAGE\tLEFT\tFLAGS"
	talkerHeader = "ENDPOINT\tPOD\tFLOWS\tESTABLISHED\tCOUNTED\tPACKETS\tBYTES"
)

func (r flow) columns() []string {
	protocol := r.Protocol
	if r.ICMPType != nil {
		protocol += ":" + strconv.Itoa(int(*r.ICMPType))
	}
	return []string{protocol, r.Source.String(), r.Destination.String(), string(r.State), r.From.name(), r.To.name(),
		fmt.Sprintf("%d>%d", r.From.Identity, r.To.Identity), strconv.FormatUint(r.Packets, 10), strconv.FormatUint(r.Bytes, 10),
		fmt.Sprintf("%ds", r.AgeSeconds), fmt.Sprintf("%ds", r.LeftSeconds), cmp.Or(strings.Join(r.Flags, ","), "-")}
}

// name returns the pod, or the id of an endpoint without a known pod.
func (e end) name() string {
	switch {
	case e.Endpoint == 0:
		return "-"
	case e.Pod == "":
		return strconv.Itoa(int(e.Endpoint))
	}
	return e.Pod
}

func (t talker) columns() []string {
	return []string{strconv.Itoa(int(t.Endpoint)), cmp.Or(t.Pod, "-"), strconv.Itoa(t.Flows), strconv.Itoa(t.Established),
		strconv.FormatUint(uint64(t.Counted), 10), strconv.FormatUint(t.Packets, 10), strconv.FormatUint(t.Bytes, 10)}
}
