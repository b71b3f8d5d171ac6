package install

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"sigs.k8s.io/yaml"

	"github.com/waggle-net/waggle/pkg/crds"
	"github.com/waggle-net/waggle/pkg/version"
)

//go:embed manifests
var manifests embed.FS

// Options are the options of "waggle install".
type Options struct {
	Namespace string   // of all namespaced objects
	Image     string   // with tag
	Set       []string // key=value for the ConfigMap
	CNIBinDir string   // directory in which container runtimes find plugins
	APIServer string   // address for the agents; empty: the Service "kubernetes"
	Only      []string // parts to print; empty: all
}

// Parts returns the names of the parts, in output order.
func Parts() []string {
	return []string{"crds", "rbac", "admission", "config", "agent", "cluster", cleanupPart}
}

// cleanupPart is printed only on request: it removes the changes of the other parts from nodes.
const cleanupPart = "cleanup"

// prints reports whether a part must be printed.
func (o Options) prints(part string) bool {
	if len(o.Only) == 0 {
		return part != cleanupPart
	}
	return slices.Contains(o.Only, part)
}

// DefaultImage is the image that "make image" builds for this version.
func DefaultImage() string {
	return "waggle.local/waggle:" + regexp.MustCompile(`[^A-Za-z0-9_.-]`).ReplaceAllString(version.String(), "-")
}

// Render returns the manifests as YAML documents with comments between them.
func Render(o Options) ([]byte, error) {
	v, err := newValues(o)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "# Waggle %s. Made by \"waggle install\"; install and update with: waggle install ... | kubectl apply -f -\n", version.String())
	for _, part := range Parts() {
		if !o.prints(part) {
			continue
		}
		if err := v.render(&out, part); err != nil {
			return nil, fmt.Errorf("make the manifests of %s: %w", part, err)
		}
	}
	return out.Bytes(), nil
}

// RenderJSON returns the manifests as one JSON list.
func RenderJSON(o Options) ([]byte, error) {
	text, err := Render(o)
	if err != nil {
		return nil, err
	}
	items, err := documents(text)
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(map[string]any{"apiVersion": "v1", "kind": "List", "items": items}, "", "  ")
}

func documents(text []byte) (items []json.RawMessage, err error) {
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		item, err := yaml.YAMLToJSONStrict(document)
		if err != nil {
			return nil, fmt.Errorf("read a manifest: %w", err)
		}
		if string(item) != "null" {
			items = append(items, item)
		}
	}
	return items, nil
}

// values are the data of the templates.
type values struct {
	Options
	Settings   Settings
	HealthPort int
	ClusterAt  hostPort // address of the cluster role's probes
	CNIConfDir string   // of the node; empty if the agent writes no configuration
	TaintKey   string
	EntersPods bool   // the agent enters pods to close sockets, or to change links and routes
	Probes     bool   // the agent probes other nodes by ICMP
	MasqDir    string // directory of the ip-masq-agent's file MasqFile; empty if the agent does not read it
	MasqFile   string
}

func newValues(o Options) (values, error) {
	v := values{Options: o}
	var errs []error
	if !regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`).MatchString(o.Namespace) {
		errs = append(errs, fmt.Errorf("--namespace %q: is no name of a namespace", o.Namespace))
	}
	if !regexp.MustCompile(`^[a-zA-Z0-9][-a-zA-Z0-9._:/@]*$`).MatchString(o.Image) {
		errs = append(errs, fmt.Errorf("--image %q: is no name of an image", o.Image))
	}
	if !path.IsAbs(o.CNIBinDir) {
		errs = append(errs, fmt.Errorf("--cni-bin-dir %q: must be an absolute path", o.CNIBinDir))
	}
	for _, part := range o.Only {
		if !slices.Contains(Parts(), part) {
			errs = append(errs, fmt.Errorf("--only %q: use %s", part, strings.Join(Parts(), ", ")))
		}
	}
	if slices.Contains(o.Only, cleanupPart) && o.prints("agent") {
		errs = append(errs, errors.New("--only: agent and cleanup undo each other: print one of them"))
	}
	var err error
	v.Settings, err = newSettings(o.Set, o.APIServer)
	errs = append(errs, err)
	v.HealthPort, err = v.Settings.healthPort()
	errs = append(errs, err)
	v.ClusterAt, err = v.Settings.clusterProbes()
	errs = append(errs, err)
	if conflist := v.Settings.value("write-cni-conf-when-ready"); conflist != "" {
		if !path.IsAbs(conflist) || path.Ext(conflist) != ".conflist" {
			errs = append(errs, fmt.Errorf("--set write-cni-conf-when-ready=%s: want an absolute path that ends in .conflist", conflist))
		}
		v.CNIConfDir = path.Dir(conflist)
	}
	v.TaintKey = v.Settings.value("agent-not-ready-taint-key")
	for _, flag := range []string{"bpf-lb-sock-terminate-pod-connections", "enable-pod-mtu-updates"} {
		enters, _ := strconv.ParseBool(v.Settings.value(flag)) // an invalid bool is reported above
		v.EntersPods = v.EntersPods || enters
	}
	v.Probes, _ = strconv.ParseBool(v.Settings.value("enable-health-checking"))
	v.MasqDir, v.MasqFile, err = v.masqFile()
	errs = append(errs, err)
	return v, errors.Join(errs...)
}

func (v values) render(out *bytes.Buffer, part string) error {
	if part == "crds" {
		return renderCRDs(out)
	}
	name := part + ".yaml"
	functions := template.FuncMap{"quote": quote, "list": flowList}
	t, err := template.New(name).Funcs(functions).Option("missingkey=error").ParseFS(manifests, "manifests/"+name)
	if err != nil {
		return err
	}
	return t.Execute(out, v)
}

func renderCRDs(out *bytes.Buffer) error {
	for _, definition := range crds.All() {
		text, err := yaml.Marshal(definition)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "---\n%s", text)
	}
	return nil
}

// Methods for the templates.

// AgentRules returns the rules of the agents' role.
func (v values) AgentRules() []rule { return rules(Agent, false) }

// ClusterRules returns the rules of the cluster role's account, for all namespaces.
func (v values) ClusterRules() []rule { return rules(Cluster, false) }

// ClusterRulesWithin returns its rules for the namespace of the installation.
func (v values) ClusterRulesWithin() []rule { return rules(Cluster, true) }

// ClusterArgs returns the arguments of the cluster role. It writes to every node of the cluster, so its request rate is higher than an agent's, unless
// the options set a limit for both.
func (v values) ClusterArgs() []string {
	args := []string{"--role=cluster", "--config-dir=/etc/waggle"}
	for _, limit := range []struct{ flag, value string }{{"k8s-client-qps", "100"}, {"k8s-client-burst", "200"}} {
		if _, set := v.Settings[limit.flag]; !set {
			args = append(args, "--"+limit.flag+"="+limit.value)
		}
	}
	return args
}

// cleanupConf returns the CNI configuration that cleanup removes, even if the agent no longer writes one.
func (v values) cleanupConf() string {
	return cmp.Or(v.Settings.value("write-cni-conf-when-ready"), Defaults()["write-cni-conf-when-ready"])
}

// CgroupRoot returns the directory of cgroup2 on the node; the agent also finds version 2 below a mount point of version 1.
func (v values) CgroupRoot() string { return cmp.Or(v.Settings.value("cgroup-root"), "/sys/fs/cgroup") }

// CleanupConfDir returns the directory of that configuration on the node.
func (v values) CleanupConfDir() string { return path.Dir(v.cleanupConf()) }

// CleanupArgs returns the paths of the node as the pod of the DaemonSet sees them.
func (v values) CleanupArgs() []string {
	const host = "/host"
	args := []string{"--state-dir=" + host + "/var/run/waggle", "--lib-dir=" + host + "/var/lib/waggle", "--bpf-root=" + host + "/sys/fs/bpf",
		"--cni-bin-dir=" + host + v.CNIBinDir, "--write-cni-conf-when-ready=" + host + v.cleanupConf()}
	for _, flag := range []string{"cni-log-file", "socket-path", "shell-socket-path", "monitor-socket-path"} {
		if file := v.Settings.value(flag); file != "" {
			args = append(args, "--"+flag+"="+host+file)
		}
	}
	return args
}

// Digest returns a hash of the options, so that pods are replaced when the ConfigMap changes.
func (v values) Digest() string {
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(v.Settings)) {
		fmt.Fprintf(&text, "%s=%s\n", key, v.Settings[key])
	}
	return fmt.Sprintf("%.16x", sha256.Sum256([]byte(text.String())))
}

// quote returns a string in YAML; JSON strings are valid YAML.
func quote(s string) (string, error) {
	text, err := json.Marshal(s)
	return string(text), err
}

// flowList returns strings as a YAML list on one line.
func flowList(items []string) (string, error) {
	quoted := make([]string, len(items))
	for i, item := range items {
		var err error
		if quoted[i], err = quote(item); err != nil {
			return "", err
		}
	}
	return "[" + strings.Join(quoted, ", ") + "]", nil
}
