package metrics

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
	"github.com/waggle-net/waggle/pkg/tables/collectedendpoints"
	"github.com/waggle-net/waggle/pkg/tables/configs"
	"github.com/waggle-net/waggle/pkg/tables/conntrack"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
	"github.com/waggle-net/waggle/pkg/tables/flows"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/health"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/tables/ipamusage"
	"github.com/waggle-net/waggle/pkg/tables/natusage"
	"github.com/waggle-net/waggle/pkg/tables/neighborlimits"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodepaths"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodeviews"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
	"github.com/waggle-net/waggle/pkg/tables/policies"
	"github.com/waggle-net/waggle/pkg/tables/policyentries"
	"github.com/waggle-net/waggle/pkg/tables/policyprogress"
	"github.com/waggle-net/waggle/pkg/tables/refusedclaims"
	"github.com/waggle-net/waggle/pkg/tables/servicemapusage"
	"github.com/waggle-net/waggle/pkg/tables/services"
)

// inputs are the tables that other cells write.
func inputs(maps pinnedmaps.Maps) cell.Cell {
	return cell.Provide(
		health.NewTable, statedb.RWTable[health.Status].ToTable,
		configs.NewTable, statedb.RWTable[configs.Config].ToTable,
		endpointstates.NewTable, statedb.RWTable[*endpointstates.EndpointState].ToTable,
		ipamaddresses.NewTable, statedb.RWTable[ipamaddresses.Address].ToTable,
		ipamusage.NewTable, statedb.RWTable[ipamusage.Usage].ToTable,
		collectedendpoints.NewTable, statedb.RWTable[collectedendpoints.Collected].ToTable,
		conntrack.NewTable, statedb.RWTable[conntrack.Map].ToTable,
		natusage.NewTable, statedb.RWTable[natusage.Usage].ToTable,
		driftrepairs.NewTable, statedb.RWTable[driftrepairs.Repair].ToTable,
		policies.NewTable, statedb.RWTable[*policies.Policy].ToTable,
		policyentries.NewTable, statedb.RWTable[*policyentries.Policy].ToTable,
		policyprogress.NewTable, statedb.RWTable[policyprogress.Progress].ToTable,
		flows.NewTable, statedb.RWTable[*flows.Flow].ToTable,
		nodehealth.NewTable, statedb.RWTable[*nodehealth.Path].ToTable,
		nodeviews.NewTable, statedb.RWTable[*nodeviews.View].ToTable,
		pathtests.NewTable, statedb.RWTable[*pathtests.Test].ToTable,
		nodepaths.NewTable, statedb.RWTable[*nodepaths.Path].ToTable,
		nodes.NewTable, statedb.RWTable[*nodes.Node].ToTable,
		neighborlimits.NewTable, statedb.RWTable[neighborlimits.Limit].ToTable,
		refusedclaims.NewTable, statedb.RWTable[refusedclaims.Refused].ToTable,
		services.NewTable, statedb.RWTable[*services.Service].ToTable,
		frontends.NewTable, statedb.RWTable[*frontends.Frontend].ToTable,
		backends.NewTable, statedb.RWTable[*backends.Backend].ToTable,
		servicemapusage.NewTable, statedb.RWTable[servicemapusage.Usage].ToTable,
		bpfmaps.NewTable, statedb.RWTable[*bpfmaps.Map].ToTable,
		func() pinnedmaps.Maps { return maps },
	)
}

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{Cell, inputs(noMaps{pinnedmaps.ErrNotOpen}), cell.Provide(scrapeCommand)}
	})
}

// scrapeCommand returns the command "scrape prefix", which prints the served metrics with that prefix, without comments.
func scrapeCommand(reports *cell.SimpleHealth) upstream.ScriptCmdsOut {
	return upstream.NewScriptCmds(map[string]script.Cmd{"scrape": script.Command(script.CmdUsage{Summary: "Scrape"},
		func(_ *script.State, args ...string) (script.WaitFunc, error) {
			var status string
			if job := reports.GetChild("metrics.job-serve"); job != nil {
				job.Lock()
				status = job.Status
				job.Unlock()
			}
			if status == "" { // the server has not started, or never will
				return func(*script.State) (string, string, error) { return "nothing is served\n", "", nil }, nil
			}
			address, serving := strings.CutPrefix(status, "serving on ")
			if !serving {
				return nil, errors.New(status)
			}
			response, err := http.Get("http://" + address + "/metrics")
			if err != nil {
				return nil, err
			}
			defer response.Body.Close()
			text, err := io.ReadAll(response.Body)
			if err != nil {
				return nil, err
			}
			var out strings.Builder
			for line := range strings.Lines(string(text)) {
				if strings.HasPrefix(line, args[0]) {
					out.WriteString(line)
				}
			}
			return func(*script.State) (string, string, error) { return out.String(), "", nil }, nil
		})})
}
