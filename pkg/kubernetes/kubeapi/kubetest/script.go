package kubetest

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/script"
	"sigs.k8s.io/yaml"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

// Commands returns the script commands that act as the rest of the cluster: "api/put file...", "api/show resource [namespace/]name", "api/delete
// resource name", "api/count verb resource" (a resource may end in a subresource, as in "nodes/status"), "api/fail status" until "api/fail 0",
// "api/stop" and "api/start".
func (s *Server) Commands(t testing.TB) upstream.ScriptCmdsOut {
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"api/put":  command("Create or replace objects", s.putFiles),
		"api/show": command("Print an object", s.show),
		"api/delete": command("Delete an object", func(_ *script.State, args []string) (string, error) {
			r, err := named(args[0])
			if err == nil && !s.Remove(r, "", args[1]) {
				err = fmt.Errorf("there is no %s %s", args[0], args[1])
			}
			return "", err
		}),
		"api/count": command("Print how many requests there were", func(_ *script.State, args []string) (string, error) {
			n := 0
			for _, r := range s.Requests() {
				resource := strings.TrimSuffix(r.Resource+"/"+r.Subresource, "/")
				if r.Verb == args[0] && resource == args[1] {
					n++
				}
			}
			return fmt.Sprintln(n), nil
		}),
		"api/fail": command("Answer everything with a status", func(_ *script.State, args []string) (string, error) {
			status := 0
			if _, err := fmt.Sscan(args[0], &status); err != nil {
				return "", err
			}
			s.Fault(func(*http.Request) (int, string) { return status, "" })
			return "", nil
		}),
		"api/stop":  command("Stop the server", func(*script.State, []string) (string, error) { s.Stop(); return "", nil }),
		"api/start": command("Start it again", func(*script.State, []string) (string, error) { s.Start(t); return "", nil }),
	})
}

func command(summary string, f func(s *script.State, args []string) (string, error)) script.Cmd {
	return script.Command(script.CmdUsage{Summary: summary, Args: "..."},
		func(state *script.State, args ...string) (script.WaitFunc, error) {
			return func(*script.State) (string, string, error) {
				out, err := f(state, args)
				return out, "", err
			}, nil
		})
}

func named(name string) (kubeapi.Resource, error) {
	all := kubeapi.Resources()
	i := slices.IndexFunc(all, func(r kubeapi.Resource) bool { return r.String() == name })
	if i < 0 {
		return kubeapi.Resource{}, fmt.Errorf("no resource is called %q", name)
	}
	return all[i], nil
}

func (s *Server) putFiles(state *script.State, args []string) (string, error) {
	for _, name := range args {
		text, err := os.ReadFile(state.Path(name))
		if err != nil {
			return "", err
		}
		if err := s.PutYAML(string(text)); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
	}
	return "", nil
}

func (s *Server) show(_ *script.State, args []string) (string, error) {
	r, err := named(args[0])
	if err != nil {
		return "", err
	}
	namespace, name, found := strings.Cut(args[1], "/")
	if !found {
		namespace, name = "", args[1]
	}
	s.store.mu.Lock()
	object := s.store.objects[r.String()][key(namespace, name)]
	s.store.mu.Unlock()
	if object == nil {
		return "", fmt.Errorf("there is no %s %s", args[0], args[1])
	}
	text, err := yaml.Marshal(object.Object)
	return string(text), err
}
