package install

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// taken returns the directories of the agent's container that the image, the runtime and the manifests already use.
func (v values) taken() []string {
	folders := []string{"/dev", "/host", "/proc", "/sys", "/usr", "/etc/waggle", "/var/lib/waggle", "/var/run/waggle", "/var/run/netns",
		"/var/run/secrets"}
	if v.CNIConfDir != "" {
		folders = append(folders, v.CNIConfDir)
	}
	return folders
}

// masqFile returns directory and name of the ip-masq-agent's file, or empty strings if the agent does not read it. The manifests mount a ConfigMap as
// the directory. A directory above or below another used one would hide its files, or its mount point could not be created.
func (v values) masqFile() (folder, file string, err error) {
	const flag = "ip-masq-agent-config-path"
	if read, _ := strconv.ParseBool(v.Settings.value("enable-ip-masq-agent")); !read { // an invalid bool is reported elsewhere
		return "", "", nil
	}
	value := v.Settings.value(flag)
	if !path.IsAbs(value) {
		return "", "", fmt.Errorf("--set %s=%s: want an absolute path", flag, value)
	}
	folder, file = path.Dir(path.Clean(value)), path.Base(path.Clean(value))
	for _, t := range v.taken() {
		if within(t, folder) || within(folder, t) {
			return "", "", fmt.Errorf("--set %s=%s: a ConfigMap is mounted on its directory, %s, and the agent has other files in %s: "+
				"use a file in a separate directory, such as /etc/config/ip-masq-agent", flag, value, folder, t)
		}
	}
	return folder, file, nil
}

// within reports whether folder equals outer or is below it.
func within(folder, outer string) bool {
	return strings.HasPrefix(strings.TrimSuffix(folder, "/")+"/", strings.TrimSuffix(outer, "/")+"/")
}
