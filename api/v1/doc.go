// Package v1 is the API of the agent: openapi.yaml describes it, and the packages below are generated from that file.
// The names on the wire are those of the Cilium agent.
package v1

//go:generate sh -c "cd models && go tool oapi-codegen -config generate.yaml ../openapi.yaml"
//go:generate sh -c "cd server && go tool oapi-codegen -config generate.yaml ../openapi.yaml"
//go:generate sh -c "cd client && go tool oapi-codegen -config generate.yaml ../openapi.yaml"
