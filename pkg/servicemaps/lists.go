package servicemaps

import "fmt"

// List is a flag that leaves one list of what the maps have. Without any of them frontends are listed with their backends.
type List struct{ Name, Usage string }

// Lists are all of them, for the agent's shell and for the program that talks with it.
func Lists() []List {
	return []List{
		{"frontends", "List the frontends without their backends"},
		{"backends", "List the backends alone"},
		{"revnat", "List the address that each id of a frontend stands for, which answers get"},
		{"source-ranges", "List the prefixes whose clients alone may use a frontend"},
	}
}

// ChosenList is the one list whose flag is given, or "".
func ChosenList(given func(flag string) (bool, error)) (only string, err error) {
	for _, l := range Lists() {
		on, err := given(l.Name)
		switch {
		case err != nil:
			return "", err
		case on && only != "":
			return "", fmt.Errorf("give one of --%s and --%s", only, l.Name)
		case on:
			only = l.Name
		}
	}
	return only, nil
}
