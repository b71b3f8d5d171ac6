// Package install renders the manifests that install Waggle in a cluster: "waggle install" prints them. The folder manifests holds templates, in output
// order. This package computes the values in them: permissions from the table in permissions.go, options from --set, custom resources from package
// crds.
package install
