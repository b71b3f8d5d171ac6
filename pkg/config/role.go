package config

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"
)

// RoleFlag is the name of the flag for the role of the process.
const RoleFlag = "role"

// Roles of a process.
const (
	RoleNode    = "node"    // agent of one node
	RoleCluster = "cluster" // work for the whole cluster
)

// roleMark is the annotation of flags that only another role has. Its value is that role.
const roleMark = "waggle_role"

// FindRole returns the configured role before the flags of that role are known. Flag, environment and directory have the
// precedence of [Load]. all holds the flags of every role. FindRole reports only a bad role; Load reports all other mistakes.
func FindRole(all *pflag.FlagSet, args, environ []string) (string, error) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.SetOutput(io.Discard)
	all.VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" {
			flags.AddFlag(&pflag.Flag{Name: f.Name, Value: new(anything), DefValue: f.DefValue, NoOptDefVal: f.NoOptDefVal})
		}
	})
	flags.BoolP("help", "h", false, "")
	_ = flags.Parse(args) // Load reports the mistake

	found := entry{value: RoleNode, origin: "its default"}
	fromEnv, _ := environment(flags, environ)
	dir, origin := directoryName(flags, fromEnv)
	fromDir, _ := readDirectory(dir, origin)
	for _, e := range append(append(typed(flags), fromEnv...), fromDir...) {
		if e.key == RoleFlag && e.value != "" {
			found = e
			break
		}
	}
	if err := checkRole(found.value, found.origin); err != nil {
		return "", err
	}
	return found.value, nil
}

// checkRole returns an error for the name of an unknown role.
func checkRole(role, origin string) error {
	if role == RoleNode || role == RoleCluster {
		return nil
	}
	from := ""
	if origin != "--"+RoleFlag {
		from = " from " + origin
	}
	return fmt.Errorf("--%s=%q%s: use %s or %s", RoleFlag, shorten(role), from, RoleNode, RoleCluster)
}

// AddOtherRole registers the flags that only another role has, as hidden flags. [Load] ignores them in the environment and in
// the directory, which the roles share; on the command line they are an error. The caller must call it before [AddForeign].
func AddOtherRole(flags, others *pflag.FlagSet, role string) {
	others.VisitAll(func(f *pflag.Flag) {
		if flags.Lookup(f.Name) == nil {
			flags.AddFlag(&pflag.Flag{Name: f.Name, Usage: "Flag of --role=" + role, Value: new(anything), Hidden: true,
				NoOptDefVal: f.NoOptDefVal, Annotations: map[string][]string{roleMark: {role}}})
		}
	})
}

// otherRole returns the only role that has the flag; "" when the role of this process has it too.
func otherRole(f *pflag.Flag) string {
	return strings.Join(f.Annotations[roleMark], "")
}

func wrongRole(e entry, role string) error {
	return fmt.Errorf("--%s is an option of --role=%s, which this process does not have", e.key, role)
}
