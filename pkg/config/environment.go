package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// EnvPrefix is the prefix of an option's name in the environment.
const EnvPrefix = "WAGGLE_"

// clientVariables are variables of the commands, which have the same environment as the agent in its container.
var clientVariables = []string{"WAGGLE_SOCK", "WAGGLE_SHELL_SOCK", "WAGGLE_MONITOR_SOCK"}

// serviceVariable matches the variables that Kubernetes injects for Services whose names begin with waggle.
var serviceVariable = regexp.MustCompile(`^WAGGLE_(.*_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)

// EnvName returns the environment variable of an option.
func EnvName(key string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
}

// environment returns the options in the environment. An empty variable counts as not set.
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

// injected reports whether Kubernetes, and not the user, set the variable.
func injected(name, value string) bool {
	return serviceVariable.MatchString(name) || strings.HasSuffix(name, "_PORT") && strings.Contains(value, "://")
}
