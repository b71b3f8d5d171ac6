package cli

//go:generate go test . -run TestReference -update
