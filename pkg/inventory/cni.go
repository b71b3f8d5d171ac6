package inventory

import (
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/waggle-net/waggle/pkg/setup"
	"github.com/waggle-net/waggle/pkg/tables/cniconfig"
)

// pluginPackage is the package path that the Go tool writes into the plugin binary.
const pluginPackage = "github.com/waggle-net/waggle/cmd/waggle-cni"

// cniConf finds the configuration that the agent writes, if it calls Waggle's plugin, and files of an interrupted write.
func (m *Machine) cniConf() (found []Object, err error) {
	path := m.paths.CNIConf
	if path == "" {
		return nil, nil
	}
	ours, err := callsOurPlugin(path)
	if ours {
		found = append(found, entry{path: path}.object("cell cniconf", "path, and its plugin is "+setup.PluginName))
	}
	errs := []error{err}
	names, _ := filepath.Glob(filepath.Join(escapeGlob(filepath.Dir(path)), "*"+cniconfig.TemporarySuffix)) // the pattern is valid; it also finds the bare suffix
	for _, name := range names {
		entries, err := tree(name)
		errs = append(errs, err)
		for _, e := range entries {
			found = append(found, e.object("cell cniconf", "name"))
		}
	}
	return found, errors.Join(errs...)
}

func callsOurPlugin(path string) (bool, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var list struct {
		Plugins []struct {
			Type string `json:"type"`
		} `json:"plugins"`
	}
	// A file that is not JSON calls no plugin.
	return json.Unmarshal(text, &list) == nil && len(list.Plugins) > 0 && list.Plugins[0].Type == setup.PluginName, nil
}

// cniConfRenamed finds configurations of other networks that --cni-exclusive has renamed. Cleanup restores their names, unless a new file with that name
// exists.
func (m *Machine) cniConfRenamed() (found []Object, err error) {
	if m.paths.CNIConf == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(filepath.Dir(m.paths.CNIConf))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		path := filepath.Join(filepath.Dir(m.paths.CNIConf), e.Name())
		original, renamed := strings.CutSuffix(path, cniconfig.BackupSuffix)
		if !renamed {
			continue
		}
		if _, err := os.Lstat(original); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		found = append(found, Object{Name: path, Owner: "cell cniconf", Proof: "name", Note: "is renamed to " + filepath.Base(original),
			remove: func() error { return os.Rename(path, original) }})
	}
	return found, err
}

// cniPlugin finds the plugin in the runtimes' directory, and a partially written one.
func (m *Machine) cniPlugin() (found []Object, err error) {
	if m.paths.CNIBinDir == "" {
		return nil, nil
	}
	path := filepath.Join(m.paths.CNIBinDir, setup.PluginName)
	switch info, err := buildinfo.ReadFile(path); {
	case errors.Is(err, fs.ErrNotExist), err == nil && info.Path != pluginPackage:
	case err != nil:
		if _, statErr := os.Stat(path); statErr != nil {
			return nil, fmt.Errorf("read %s: %w", path, statErr)
		} // otherwise it is not a Go program, and so not Waggle's
	default:
		found = append(found, entry{path: path}.object("waggle-agent setup", "name and package path of the build"))
	}
	temporary, err := tree(filepath.Join(m.paths.CNIBinDir, setup.TemporaryName))
	for _, e := range temporary {
		found = append(found, e.object("waggle-agent setup", "name"))
	}
	return found, err
}

// escapeGlob escapes a directory name so that it matches only itself.
func escapeGlob(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}
