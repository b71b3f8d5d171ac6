// Package install makes the manifests that install Waggle in a cluster: "waggle install" prints them. The folder manifests
// holds them as templates, in the order in which they are printed; what the templates leave open is computed here: the
// permissions from the table in permissions.go, the options from --set, the custom resources from package crds.
package install
