// The API's page: Swagger UI over the service's own document. It asks no other host, the validator's included.
SwaggerUIBundle({ url: "/openapi.json", dom_id: "#api", deepLinking: true, docExpansion: "list", defaultModelsExpandDepth: 0, validatorUrl: null });
