package ctgc

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/script"
	"github.com/spf13/pflag"
)

func newNatCommands(a *access) upstream.ScriptCmdsOut {
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"nat/list": natCommand("List the translated flows", false, func(f natFilter, how flags) (string, error) {
			rows, err := a.translations(f)
			if err != nil || how.json {
				return asJSON(rows, err)
			}
			return columns(translationHeader, rows, translation.columns), nil
		}),
		"nat/top": natCommand("List the endpoints with the most translated flows, and the destinations with the most ports in use", false,
			func(f natFilter, how flags) (string, error) {
				rows, err := a.natTalkers(f)
				if err != nil || how.json {
					return asJSON(rows, err)
				}
				return columns(natTalkerHeader, rows, natTalker.columns), nil
			}),
		"nat/flush": natCommand("Delete translated flows: connections break, the next datagram of a flow is translated again", true,
			func(f natFilter, how flags) (string, error) {
				if f.empty() != how.all {
					return "", errors.New("select flows with --endpoint, --pod, --address or --service, or all flows with --all alone")
				}
				n, err := a.flushNat(f)
				if err != nil || how.json {
					return asJSON(map[string]int{"deleted": n}, err)
				}
				return fmt.Sprintf("%d translated flows were deleted\n", n), nil
			}),
	})
}

func natCommand(summary string, deletes bool, run func(natFilter, flags) (string, error)) script.Cmd {
	return filtered(summary, deletes, func(fs *pflag.FlagSet) {
		fs.String("service", "", "Only flows of this service, as NAMESPACE/NAME")
	}, func(fs *pflag.FlagSet, f filter, how flags) (string, error) {
		service, err := fs.GetString("service")
		if err != nil {
			return "", err
		}
		return run(natFilter{f, service}, how)
	})
}

const (
	translationHeader = "PROTOCOL\tSOURCE\tDESTINATION\tNEW SOURCE\tNEW DESTINATION\tPLACE\tSTATE\tLEFT\tSERVICE\tPOD\tFLAGS"
	natTalkerHeader   = "ENDPOINT\tPOD\tTARGET\tFLOWS\tCOUNTED\tSHARE\tREFUSED"
)

func (t translation) columns() []string {
	service := cmp.Or(t.Service, "-")
	if t.Service == "" && t.ServiceID != 0 {
		service = strconv.FormatUint(uint64(t.ServiceID), 10)
	}
	flags := t.Flags
	if t.Incomplete {
		flags = append(flags[:len(flags):len(flags)], "incomplete")
	}
	return []string{t.Protocol, t.Source.String(), t.Destination.String(), t.NewSource.String(), t.NewDestination.String(), t.Place,
		string(t.State), fmt.Sprintf("%ds", t.LeftSeconds), service, end{Endpoint: t.Endpoint, Pod: t.Pod}.name(),
		cmp.Or(strings.Join(flags, ","), "-")}
}

func (t natTalker) columns() []string {
	endpoint := "-"
	if t.Endpoint != 0 {
		endpoint = strconv.Itoa(int(t.Endpoint))
	}
	share := [3]string{"-", "-", "-"}
	if t.Target == "" {
		share = [3]string{strconv.Itoa(int(t.Counted)), fmt.Sprintf("%d%%", t.Percent), strconv.FormatUint(t.Refused, 10)}
	}
	pod := cmp.Or(t.Pod, "-")
	switch {
	case t.Node:
		pod = "(node)"
	case t.Beyond:
		pod = "(beyond guarantees)"
	}
	return []string{endpoint, pod, cmp.Or(t.Target, "-"), strconv.Itoa(t.Flows), share[0], share[1], share[2]}
}
