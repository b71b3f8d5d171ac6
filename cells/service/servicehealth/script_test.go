package servicehealth

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"

	"github.com/waggle-net/waggle/pkg/celltest"
)

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell {
		return []cell.Cell{inputs(), cell.Module("under-test", "Service health under test", Cell), cell.Provide(func() hive.ScriptCmdsOut { return commands(t) })}
	})
}

// commands returns script commands that find a free port and send health checks to it.
func commands(t testing.TB) hive.ScriptCmdsOut {
	return hive.NewScriptCmds(map[string]script.Cmd{
		"port/free": script.Command(script.CmdUsage{Summary: "put a free port into a variable", Args: "variable"},
			func(s *script.State, args ...string) (script.WaitFunc, error) {
				return nil, s.Setenv(args[0], fmt.Sprint(free(t)))
			}),
		"ask": script.Command(script.CmdUsage{Summary: "ask by both families, and print code, weight and answer, which have to begin so", Args: "port [prefix]"},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				return func(*script.State) (stdout, stderr string, err error) {
					var out strings.Builder
					for _, url := range urls(args[0]) {
						code, weight, body, err := ask(url)
						if err != nil {
							return "", "", err
						}
						answer := fmt.Sprintln(code, weight, body)
						if !strings.HasPrefix(answer, strings.Join(args[1:], " ")) {
							return "", "", fmt.Errorf("%s: %s", url, answer)
						}
						out.WriteString(answer)
					}
					return out.String(), "", nil
				}, nil
			}),
		"refused": script.Command(script.CmdUsage{Summary: "require that connections are refused, by both families", Args: "port"},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				for _, url := range urls(args[0]) {
					if _, _, body, err := ask(url); !errors.Is(err, syscall.ECONNREFUSED) {
						return nil, fmt.Errorf("%s: %s %w", url, body, err)
					}
				}
				return nil, nil
			}),
	})
}

func urls(port string) []string {
	return []string{"http://127.0.0.1:" + port + "/whatever", "http://[::1]:" + port + "/whatever"}
}
