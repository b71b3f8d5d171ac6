package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/waggle-net/waggle/pkg/agentlock"
	"github.com/waggle-net/waggle/pkg/sysctlrecord"
)

// stateNames are the agent's files and directories in the state directory, with their owners. Manifests are not included, because users write them. The
// locks are last.
var stateNames = []struct{ name, owner string }{
	{"endpoints", "cell endpointmanager"},
	{"deleteQueue", "plugin and cell endpointmanager"},
	{"ipam", "cell ipamallocator"},
	{"identities", "cell identityallocator"},
	{"mtus", "cell podmtu"},
	{"nodes", "cell nodeidallocator"},
	{"former-ranges", "cell nodelist"},
	{"service-holders", "cell servicecontroller"},
	{"sysctls", "cell sysctl"},
	{"stall.txt", "cell liveness"},
	{"stall-before.txt", "cell liveness"},
	{"wedge.txt", "cell liveness"}, // of builds before the first release, like the next one
	{"wedge-before.txt", "cell liveness"},
	{unmounting, "waggle cleanup"},
	{"self-test.json", "waggle-agent setup"},
	{".self-test.json.tmp", "waggle-agent setup"},
	{"waggle.sock", "cell apiserver"},
	{"waggle.sock.new", "cell apiserver"},
	{"shell.sock", "cell shell"},
	{"shell.sock.new", "cell shell"},
	{"monitor1_2.sock", "cell monitor"},
	{"monitor1_2.sock.new", "cell monitor"},
	{"health.sock", "cell nodehealthprober"},
	{"health.sock.new", "cell nodehealthprober"},
	{agentlock.SetupFile, "waggle-agent setup"},
	{agentlock.AgentFile, "waggle-agent"},
}

// files finds the contents of the state directory and the library directory, by path.
func (m *Machine) files() (found []Object, err error) {
	var errs []error
	add := func(path, owner string) {
		if path == "" {
			return
		}
		entries, err := tree(path)
		errs = append(errs, err)
		for _, e := range entries {
			found = append(found, e.object(owner, "path"))
		}
	}
	for _, socket := range []struct{ path, owner string }{
		{m.paths.Socket, "cell apiserver"}, {m.paths.ShellSocket, "cell shell"}, {m.paths.MonitorSocket, "cell monitor"}} {
		if socket.path != "" && filepath.Dir(socket.path) != m.paths.StateDir {
			add(socket.path, socket.owner)
			add(socket.path+".new", socket.owner)
		}
	}
	if m.paths.CNILog != "" {
		add(m.paths.CNILog, "plugin waggle-cni")
		add(m.paths.CNILog+".1", "plugin waggle-cni") // the previous log
	}
	for _, name := range []string{"k8s-snapshot", "k8s-snapshot.tmp", "k8s-snapshot.bad"} {
		add(filepath.Join(m.paths.LibDir, name), "cell k8stables")
	}
	for _, s := range stateNames {
		add(filepath.Join(m.paths.StateDir, s.name), s.owner)
	}
	return m.keepRecord(found), errors.Join(errs...)
}

// keepRecord keeps the record of kernel settings until they are restored.
func (m *Machine) keepRecord(found []Object) []Object {
	for i := range found {
		dir := sysctlrecord.Dir(m.paths.StateDir)
		if remove := found[i].remove; found[i].Name == dir || filepath.Dir(found[i].Name) == dir {
			found[i].remove = func() error {
				if pending, err := m.sysctls(); err != nil || len(pending) > 0 {
					return fmt.Errorf("keep %s: kernel settings are not all restored: %w", dir, cmp.Or(err, errPending))
				}
				return remove()
			}
		}
	}
	return found
}

var errPending = errors.New("run the command again, which needs it")

// directories finds the state directory and the library directory, unless they contain other files.
func (m *Machine) directories() (found []Object, err error) {
	files, err := m.files()
	ours := map[string]bool{}
	for _, f := range files {
		ours[f.Name] = true
	}
	errs := []error{err}
	for _, d := range []struct{ path, owner string }{{m.paths.LibDir, "cell k8stables"}, {m.paths.StateDir, "waggle-agent"}} {
		entries, err := os.ReadDir(d.path)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
			continue
		}
		foreign := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return !ours[filepath.Join(d.path, e.Name())] })
		if !foreign {
			found = append(found, entry{path: d.path, note: "if empty"}.object(d.owner, "path"))
		}
	}
	return found, errors.Join(errs...)
}
