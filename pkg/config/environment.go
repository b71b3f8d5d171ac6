package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// EnvPrefix stands before the name of an option in the environment.
const EnvPrefix = "WAGGLE_"

// clientVariables belong to the commands, which share the environment with the agent in its container.
var clientVariables = []string{"WAGGLE_SOCK", "WAGGLE_SHELL_SOCK", "WAGGLE_MONITOR_SOCK"}

// serviceVariable matches what Kubernetes injects for Services whose names begin with waggle.
var serviceVariable = regexp.MustCompile(`^WAGGLE_(.*_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)

// EnvName is the variable of an option.
func EnvName(key string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
}

// environment finds the options among the variables. A variable that is set to nothing counts as not set.
func environment(flags *pflag.FlagSet, environ []string) (found []entry, warnings []string) {
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		rest, ours := strings.CutPrefix(name, EnvPrefix)
		if !ours || value == "" || slices.Contains(clientVariables, name) {
			continue
		}
		key := strings.ReplaceAll(strings.ToLower(rest), "_", "-")
		if flags.Lookup(key) != nil || foreign(key) {
			found = append(found, entry{key: key, value: value, origin: name, source: Environment})
			continue
		}
		if injected(name, value) {
			continue
		}
		warning := fmt.Sprintf("environment variable %s is no option of the agent", name)
		if near := nearest(key, flags); near != "" {
			warning += ", the nearest known one is " + EnvName(near)
		}
		warnings = append(warnings, warning)
	}
	slices.Sort(warnings)
	return found, warnings
}

// injected tells whether Kubernetes, not a person, set the variable.
func injected(name, value string) bool {
	return serviceVariable.MatchString(name) || strings.HasSuffix(name, "_PORT") && strings.Contains(value, "://")
}
