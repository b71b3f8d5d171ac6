package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/bpfprograms"
	"github.com/waggle-net/waggle/pkg/tables/configs"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/pkg/tables/nodepaths"
	"github.com/waggle-net/waggle/pkg/tables/nodeviews"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
	"github.com/waggle-net/waggle/pkg/tables/policies"
	"github.com/waggle-net/waggle/pkg/tables/selftests"
)

func (a *app) statusCommand() *cobra.Command {
	var how statusDetail
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the health of the agent; the exit code is 1 while pods cannot be attached",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd, func(ctx context.Context, c *agentclient.Client) error { return a.status(ctx, c, how) })
		},
	}
	cmd.Flags().BoolVar(&how.brief, "brief", false, "Print only one line")
	cmd.Flags().BoolVar(&how.verbose, "verbose", false, "Also show healthy modules")
	return a.withOutput(cmd)
}

// statusDetail selects the level of detail.
type statusDetail struct{ brief, verbose bool }

// statusRows holds the agent's status and the tables that are printed with it, in one object for -o json and yaml. Endpoints and policies have their own
// commands.
type statusRows struct {
	*models.StatusResponse

	Tests     []selftests.SelfTest  `json:"self-tests,omitempty"`
	Repairs   []driftrepairs.Repair `json:"drift-repairs,omitempty"`
	Programs  []bpfprograms.Program `json:"bpf-programs,omitempty"`
	Paths     []*pathtests.Test     `json:"path-tests,omitempty"`
	Views     []*nodeviews.View     `json:"node-views,omitempty"`
	Modes     []*nodepaths.Path     `json:"node-paths,omitempty"`
	Ignored   []configs.Config      `json:"ignored-options,omitempty"`
	Changed   []configs.Config      `json:"changed-options,omitempty"`
	Directory *configs.Config       `json:"config-dir,omitempty"` // only if it cannot be read, or if the agent would not start again with its files
	endpoints []models.Endpoint
	policies  []*policies.Policy
	config    *models.DaemonConfiguration
}

// readTables reads the tables that a brief status omits.
func (s *statusRows) readTables(ctx context.Context, c *agentclient.Client) (err error) {
	if s.endpoints, err = c.Endpoints(ctx); err != nil {
		return err
	}
	if s.policies, err = agentclient.Rows[*policies.Policy](ctx, c, "policies"); err != nil {
		return err
	}
	if s.config, err = c.Config(ctx); err != nil {
		return err
	}
	if s.Tests, err = agentclient.Rows[selftests.SelfTest](ctx, c, "self-tests"); err != nil {
		return err
	}
	if s.Repairs, err = agentclient.Rows[driftrepairs.Repair](ctx, c, "drift-repairs"); err != nil {
		return err
	}
	if s.Paths, err = agentclient.Rows[*pathtests.Test](ctx, c, "path-tests"); err != nil {
		return err
	}
	if s.Views, err = agentclient.Rows[*nodeviews.View](ctx, c, "node-views"); err != nil {
		return err
	}
	if s.Modes, err = agentclient.Rows[*nodepaths.Path](ctx, c, "node-paths"); err != nil {
		return err
	}
	options, err := agentclient.Rows[configs.Config](ctx, c, "configs")
	if err != nil {
		return err
	}
	s.addOptions(options)
	s.Programs, err = agentclient.Rows[bpfprograms.Program](ctx, c, "bpf-programs")
	return err
}

// addOptions adds the options that a status prints.
func (s *statusRows) addOptions(options []configs.Config) {
	for _, o := range options {
		switch {
		case o.Ignored:
			s.Ignored = append(s.Ignored, o)
		case o.Changed:
			s.Changed = append(s.Changed, o)
		}
		if o.Problem != "" {
			s.Directory = &o
		}
	}
}

func (a *app) status(ctx context.Context, c *agentclient.Client, how statusDetail) error {
	answer, err := c.Status(ctx, how.brief)
	if err != nil {
		return err
	}
	s := &statusRows{StatusResponse: answer}
	if !how.brief {
		if err := s.readTables(ctx, c); err != nil {
			return err
		}
	}
	err = a.show(s, func(w io.Writer) {
		if how.brief {
			fmt.Fprintln(w, statusLine(s.Cilium))
			return
		}
		statusText(w, s, how.verbose)
		modulesTree(w, s.Modules, how.verbose)
	})
	if err == nil && s.Cilium.State == models.StatusStateFailure {
		return silent{errors.New("the agent is not ready: " + s.Cilium.Msg)}
	}
	return err
}

func statusLine(s models.Status) string {
	if s.Msg == "" {
		return printable.Text(string(s.State))
	}
	return printable.Text(string(s.State) + " - " + s.Msg)
}

func statusText(w io.Writer, s *statusRows, verbose bool) {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	line := func(name, value string) { fmt.Fprintf(tw, "%s:\t%s\n", name, printable.Text(value)) }
	line("Agent", statusLine(s.Cilium))
	for _, what := range s.Agent.WaitingFor {
		line("  waiting for", what)
	}
	line("Node", s.Cluster.Self)
	line("Cluster health", cmp.Or(s.Cluster.CiliumHealth.Msg, "-"))
	pathLines(s.Paths, line)
	viewLines(s.Views, line)
	line("Kubernetes", statusLine(models.Status{State: models.StatusState(s.Kubernetes.State), Msg: s.Kubernetes.Msg}))
	line("IPAM", cmp.Or(s.IPAM.Status, "-"))
	line("Datapath", fmt.Sprintf("%s links, programs attached with %s, %d maps", s.DatapathMode, s.AttachMode, len(s.BPFMaps.Maps)))
	line("Programs", programsText(s.Programs))
	line("Routing", routingText(s.Routing, s.Modes))
	line("KubeProxyReplacement", kubeProxyText(s.KubeProxyReplacement))
	line("Masquerading", masqueradingText(s.Masquerading))
	line("Devices", devicesText(s.KubeProxyReplacement))
	line("Endpoints", countStates(s.endpoints))
	line("Policies", policiesText(s.policies, s.config))
	if len(s.UnmanagedPods) > 0 {
		line("Pods", unmanagedText(s.StatusResponse))
	}
	for _, t := range s.Tests {
		line("Self-test", statusLine(models.Status{State: models.StatusState(t.Name + " " + string(t.State)), Msg: t.Message}))
	}
	line("Repairs", repairsText(s.Repairs))
	changeLines(s, verbose, line)
	optionLines(s.Ignored, verbose, line)
	line("Modules", countLevels(s.Modules))
	_ = tw.Flush()
}

// shownPaths is the maximum number of faulty paths, and of nodes with different views, that the status prints.
const shownPaths = 5

// pathLines prints a summary of the tests of paths to other nodes, the faulty paths and the recovered ones. It prints nothing without tests.
func pathLines(rows []*pathtests.Test, line func(name, value string)) {
	summary := pathtests.Summarize(slices.Values(rows))
	if summary.Paths == 0 {
		return
	}
	text := summary.String()
	shown := slices.Concat(summary.Failed, summary.Healed)
	if len(shown) > shownPaths {
		text += "; see waggle db show path-tests"
	}
	line("Paths", text)
	for _, t := range shown[:min(len(shown), shownPaths)] {
		line("  "+printable.Text(t.Node), t.Sentence())
	}
}

// shownOptions is the maximum number of ignored options, and of changed ones, that the status prints without --verbose.
const shownOptions = 10

// changeLines prints the options that have another value after a restart of the agent, and the problem of the configuration directory. It prints nothing without
// such options and without a problem.
func changeLines(s *statusRows, verbose bool, line func(name, value string)) {
	if s.Directory != nil {
		line("Config directory", s.Directory.Problem)
	}
	if len(s.Changed) == 0 {
		return
	}
	text, rows := strconv.Itoa(len(s.Changed)), s.Changed
	if len(rows) > shownOptions && !verbose {
		text, rows = text+"; see waggle status --verbose", rows[:shownOptions]
	}
	line("Changed options", text)
	for _, o := range rows {
		line("  "+printable.Text(o.Key), o.Sentence())
	}
}

// optionLines prints Cilium options that the agent ignores, protective options first. It prints nothing without such options.
func optionLines(rows []configs.Config, verbose bool, line func(name, value string)) {
	var ignored []string
	for _, o := range rows {
		if o.Unprotected != "" {
			line("Unprotected", o.Key+": "+o.Unprotected)
			continue
		}
		ignored = append(ignored, o.Key)
	}
	if more := len(ignored) - shownOptions; more > 0 && !verbose {
		ignored = append(ignored[:shownOptions:shownOptions], fmt.Sprintf("and %d more; see waggle status --verbose", more))
	}
	if len(ignored) > 0 {
		line("Ignored options", strings.Join(ignored, ", "))
	}
}

// viewLines prints the agents whose list of nodes differs from this node's. It prints nothing without such agents.
func viewLines(rows []*nodeviews.View, line func(name, value string)) {
	if len(rows) == 0 {
		return
	}
	text := fmt.Sprintf("%d agents know other nodes than this one", len(rows))
	if len(rows) > shownPaths {
		text += "; see waggle db show node-views"
	}
	line("Node views", text)
	for _, v := range rows[:min(len(rows), shownPaths)] {
		line("  "+printable.Text(v.Node), v.Sentence())
	}
}

// routingText returns the routing mode to pods of other nodes and the mode between pods of this node.
func routingText(r models.Routing, modes []*nodepaths.Path) string {
	network := cmp.Or(string(r.InterHostRoutingMode), "-")
	if r.TunnelProtocol != "" {
		network += " [" + r.TunnelProtocol + "]"
	}
	if summary := nodepaths.Summary(slices.Values(modes)); summary != "" {
		network += ", " + summary
	}
	return "Network: " + network + "   Host: " + cmp.Or(string(r.IntraHostRoutingMode), "-")
}

// kubeProxyText returns the parts of Services that the agent implements.
func kubeProxyText(k models.KubeProxyReplacement) string {
	if k.Mode != models.KubeProxyReplacementModeTrue {
		return cmp.Or(string(k.Mode), "-")
	}
	f := k.Features
	parts := []string{fmt.Sprintf("node ports %d-%d (%s, %s)", f.NodePort.PortMin, f.NodePort.PortMax, f.NodePort.Mode, f.NodePort.Algorithm)}
	for _, feature := range []struct {
		name string
		on   bool
	}{
		{"sockets", f.SocketLB.Enabled && !f.BPFSocketLBHostnsOnly}, {"sockets of the node", f.SocketLB.Enabled && f.BPFSocketLBHostnsOnly},
		{"host ports", f.HostPort.Enabled}, {"external IPs", f.ExternalIPs.Enabled},
	} {
		if feature.on {
			parts = append(parts, feature.name)
		}
	}
	return string(k.Mode) + ", " + strings.Join(parts, ", ")
}

// masqueradingText returns the masqueraded families and the destinations that are excluded.
func masqueradingText(m models.Masquerading) string {
	if !m.Enabled {
		return "Disabled"
	}
	var parts []string
	for _, f := range []struct {
		name, except string
		on           bool
	}{{"IPv4", m.SnatExclusionCIDRV4, m.EnabledProtocols.Ipv4}, {"IPv6", m.SnatExclusionCIDRV6, m.EnabledProtocols.Ipv6}} {
		switch {
		case f.on && f.except != "":
			parts = append(parts, f.name+" but not to "+f.except)
		case f.on:
			parts = append(parts, f.name)
		}
	}
	if m.IPMasqAgent {
		parts = append(parts, "ip-masq-agent")
	}
	return string(m.Mode) + ", " + strings.Join(parts, ", ")
}

// devicesText returns the external devices of the node with the addresses of NodePort services.
func devicesText(k models.KubeProxyReplacement) string {
	var parts []string
	for _, d := range k.DeviceList {
		text := d.Name + " " + cmp.Or(strings.Join(d.IP, " "), "-")
		if d.Name == k.DirectRoutingDevice {
			text += " (direct routing)"
		}
		parts = append(parts, text)
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}

// programsText returns the loaded generation of the datapath, or the reason why this agent's programs are not loaded.
func programsText(programs []bpfprograms.Program) string {
	var text []string
	for _, p := range programs {
		if p.Error != "" {
			return fmt.Sprintf("degraded: datapath generation %d, programs of the previous run are kept: %s", p.Generation, p.Error)
		}
		text = append(text, fmt.Sprintf("%s %d", p.Name, p.ID))
	}
	if len(text) == 0 {
		return "-"
	}
	return fmt.Sprintf("datapath generation %d (%s)", programs[0].Generation, strings.Join(text, ", "))
}

// repairsText returns the number of repairs of drift, and the last repaired object.
func repairsText(repairs []driftrepairs.Repair) string {
	var last driftrepairs.Repair
	total := uint64(0)
	for _, r := range repairs {
		total += r.Count
		if r.Last.After(last.Last) {
			last = r
		}
	}
	if total == 0 {
		return "none"
	}
	return fmt.Sprintf("%d, last: %s %s (%s) at %s; see waggle db show drift-repairs", total, last.Kind, last.What, last.Found,
		last.Last.UTC().Format(time.RFC3339))
}

func countStates(endpoints []models.Endpoint) string {
	ready := 0
	for _, e := range endpoints {
		if e.Status.State == models.EndpointStateReady {
			ready++
		}
	}
	return fmt.Sprintf("%d, %d ready", len(endpoints), ready)
}

// policiesText returns the number of policies, and of the ones that are not fully enforced.
func policiesText(rows []*policies.Policy, config *models.DaemonConfiguration) string {
	audit, partly := 0, 0
	for _, p := range rows {
		if p.Audit {
			audit++
		}
		if len(p.Problems) > 0 {
			partly++
		}
	}
	text := strconv.Itoa(len(rows))
	if audit > 0 {
		text += fmt.Sprintf(", %d in audit mode", audit)
	}
	if partly > 0 {
		text += fmt.Sprintf(", %d not enforced as written; see waggle policy list", partly)
	}
	return strings.Join(append([]string{text}, switchedOff(config)...), "; ")
}

func countLevels(modules []models.ModuleHealth) string {
	count := map[models.ModuleHealthLevel]int{}
	for _, m := range modules {
		count[m.Level]++
	}
	parts := make([]string, 0, 3)
	for _, level := range [...]models.ModuleHealthLevel{
		models.ModuleHealthLevelOK, models.ModuleHealthLevelDegraded, models.ModuleHealthLevelStopped,
	} {
		parts = append(parts, strconv.Itoa(count[level])+" "+string(level))
	}
	return strings.Join(parts, ", ")
}
