// Package v1 is the API of the agent. openapi.yaml describes the API, and the packages below this folder are generated from this file. Names on the wire are
// the names of the API of the Cilium agent.
package v1

//go:generate sh -c "cd models && go tool oapi-codegen -config generate.yaml ../openapi.yaml"
//go:generate sh -c "cd server && go tool oapi-codegen -config generate.yaml ../openapi.yaml"
