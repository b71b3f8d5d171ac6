package crds

// portPattern matches a number up to 65535, or a name with at least one letter.
const portPattern = `^([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]|` +
	`([a-zA-Z0-9]-?)*[a-zA-Z](-?[a-zA-Z0-9])*)$`

func ports() Schema {
	port := object("", map[string]Schema{
		"port":     matching("Number or name; 0 means all.", portPattern),
		"endPort":  number("Last number of a range that begins with port.", 0, 65535),
		"protocol": oneOf("By default ANY.", "TCP", "UDP", "SCTP", "ICMP", "ICMPV6", "ANY"),
	}).require("port")
	return list("The ports.", port).atMost(40)
}

// deniedPorts returns the schema of the ports of a denying entry, without rules of layer 7.
func deniedPorts() Schema {
	return list("Ports at the receiver.", object("", map[string]Schema{"ports": ports()}))
}

// allowedPorts returns the schema of the ports of an allowing entry, with TLS and rules of layer 7.
func allowedPorts() Schema {
	return list("Ports at the receiver.", object("", map[string]Schema{
		"ports":          ports(),
		"serverNames":    list("Allowed server names in TLS.", words("")),
		"terminatingTLS": tlsContext("Termination of the TLS connection from the client."),
		"originatingTLS": tlsContext("Origination of the TLS connection to the server."),
		"listener": object("Proxy that receives the traffic.", map[string]Schema{
			"envoyConfig": object("Object that defines the listener.", map[string]Schema{
				"kind": oneOf("Kind of the object.", "CiliumEnvoyConfig", "CiliumClusterwideEnvoyConfig"),
				"name": words("Name of the object."),
			}).require("name"),
			"name":     words("Name of the listener."),
			"priority": number("Order among listeners of the same port; 1 is first.", 0, 100),
		}).require("envoyConfig", "name"),
		"rules": inside(),
	}))
}

// inside returns the schema of rules of layer 7, for one protocol only.
func inside() Schema {
	return object("Allowed requests.", map[string]Schema{
		"http":    list("Requests of HTTP.", http()),
		"dns":     list("Allowed names in queries.", fqdn()),
		"kafka":   list("Requests of Kafka.", kafka()),
		"l7proto": words("Name of another protocol."),
		"l7":      list("Requests of the other protocol.", dictionary("", words(""))),
	})
}

func http() Schema {
	secret := secret("Secret with the value.")
	match := object("", map[string]Schema{
		"name":     words("Name of the header."),
		"value":    words("Required value of the header."),
		"secret":   secret,
		"mismatch": oneOf("Action if the value differs.", "LOG", "ADD", "DELETE", "REPLACE"),
	}).require("name")
	return object("", map[string]Schema{
		"method":        words("Regular expression of the method."),
		"path":          words("Regular expression of the path."),
		"host":          words("Regular expression of the host."),
		"headers":       list("Required headers.", words("")),
		"headerMatches": list("Headers with their values.", match),
	})
}

func kafka() Schema {
	return object("", map[string]Schema{
		"role":       oneOf("Kinds of requests.", "produce", "consume"),
		"apiKey":     words("Name of a kind of request."),
		"apiVersion": words("Version of the protocol."),
		"clientID":   words("Id of the client."),
		"topic":      Schema{Type: "string", Description: "Topic.", MaxLength: 255},
	})
}

func tlsContext(description string) Schema {
	return object(description, map[string]Schema{
		"secret":      secret("Secret with certificate and key."),
		"trustedCA":   words("Key of the secret with the authorities."),
		"certificate": words("Key of the secret with the certificate."),
		"privateKey":  words("Key of the secret with the private key."),
	}).require("secret")
}

func secret(description string) Schema {
	return object(description, map[string]Schema{
		"name": words("Name of the Secret."), "namespace": words("Namespace of the Secret."),
	}).require("name")
}

func icmps() Schema {
	kind := Schema{Description: "Number or name of the type.", IntOrString: true,
		AnyOf: []Schema{{Type: "integer"}, {Type: "string"}}}
	field := object("", map[string]Schema{
		"family": oneOf("By default IPv4.", "IPv4", "IPv6"),
		"type":   kind,
	}).require("type")
	return list("Types of ICMP; not together with ports.", object("", map[string]Schema{
		"fields": list("The types.", field).atMost(40),
	}))
}
