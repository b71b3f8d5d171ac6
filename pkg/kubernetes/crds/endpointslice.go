package crds

// sliceVersion is the only version in which Cilium serves CiliumEndpointSlices.
const sliceVersion = "v2alpha1"

// endpointSlice has one field that Cilium's definition lacks, waggle: an API server with Cilium's definition drops it.
func endpointSlice() Definition {
	d := define(
		Names{Kind: "CiliumEndpointSlice", Plural: ciliumEndpointSlices, Singular: "ciliumendpointslice", ShortNames: []string{"ces"}},
		"Cluster", nil,
		[]Column{{Name: "Namespace", Description: "Namespace of the pods", Type: "string", JSONPath: ".namespace"}, age},
		object("CiliumEndpointSlice lists pods of one namespace for the agents of other nodes.", map[string]Schema{
			"namespace": words("Namespace of the pods."),
			"endpoints": list("The pods, sorted by name.", slicedEndpoint()),
		}).require("endpoints"))
	served := &d.Spec.Versions[0]
	served.Name = sliceVersion
	served.Schema["openAPIV3Schema"].Properties["apiVersion"] = words("Version of the API, cilium.io/" + sliceVersion + ".")
	return d
}

func slicedEndpoint() Schema {
	of := endpointStatus().Properties
	return object("", map[string]Schema{
		"name":            words("Name of the pod."),
		"id":              count("Number of its security identity."),
		"pod-uid":         words("UID of the pod."),
		"networking":      of["networking"],
		"encryption":      of["encryption"],
		"named-ports":     of["named-ports"],
		"service-account": of["service-account"],
		"waggle": object("Properties of the CiliumEndpoint with which agents of Waggle validate the entry.", map[string]Schema{
			"uid":     words("UID of the CiliumEndpoint."),
			"created": number("Time at which it was created, in seconds since 1970.", 0, 1<<40),
			"node":    words("Name of the node that wrote it."),
		}).require("uid"),
	})
}
