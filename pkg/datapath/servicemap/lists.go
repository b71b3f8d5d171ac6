package servicemap

import "fmt"

// List is a flag that selects one list of entries. Without such a flag, frontends are listed with their backends.
type List struct{ Name, Usage string }

// Lists returns all lists, for the agent's shell and for its client.
func Lists() []List {
	return []List{
		{"frontends", "List the frontends without their backends"},
		{"backends", "List the backends alone"},
		{"revnat", "List the address of each id of a frontend, which is the source address of replies"},
		{"source-ranges", "List the source ranges of frontends"},
	}
}

// ChosenList returns the name of the list whose flag is given, or "". Two given flags are an error.
func ChosenList(given func(flag string) (bool, error)) (only string, err error) {
	for _, l := range Lists() {
		on, err := given(l.Name)
		switch {
		case err != nil:
			return "", err
		case on && only != "":
			return "", fmt.Errorf("set one of --%s and --%s", only, l.Name)
		case on:
			only = l.Name
		}
	}
	return only, nil
}
