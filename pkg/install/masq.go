package install

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// taken are the folders of the agent's container in which something is already, of the image, the runtime and the manifests.
func (v values) taken() []string {
	folders := []string{"/dev", "/host", "/proc", "/sys", "/usr", "/etc/waggle", "/var/lib/waggle", "/var/run/waggle", "/var/run/netns",
		"/var/run/secrets"}
	if v.CNIConfDir != "" {
		folders = append(folders, v.CNIConfDir)
	}
	return folders
}

// masqFile finds out whether the file of the ip-masq-agent is read, and splits its path: the manifests mount a ConfigMap as the folder.
// One above or in a folder of others would hide what is there, or its place could not be made.
func (v values) masqFile() (folder, file string, err error) {
	const flag = "ip-masq-agent-config-path"
	if read, _ := strconv.ParseBool(v.Settings.value("enable-ip-masq-agent")); !read { // what is no bool is reported elsewhere
		return "", "", nil
	}
	value := v.Settings.value(flag)
	if !path.IsAbs(value) {
		return "", "", fmt.Errorf("--set %s=%s: want an absolute path", flag, value)
	}
	folder, file = path.Dir(path.Clean(value)), path.Base(path.Clean(value))
	for _, t := range v.taken() {
		if within(t, folder) || within(folder, t) {
			return "", "", fmt.Errorf("--set %s=%s: a ConfigMap is mounted as its folder, %s, and the agent has other files in %s: "+
				"name one in a folder of its own, such as /etc/config/ip-masq-agent", flag, value, folder, t)
		}
	}
	return folder, file, nil
}

// within tells whether a folder is another or lies in it.
func within(folder, outer string) bool {
	return strings.HasPrefix(strings.TrimSuffix(folder, "/")+"/", strings.TrimSuffix(outer, "/")+"/")
}
